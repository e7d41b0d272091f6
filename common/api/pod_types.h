#pragma once

#include <string_view>

/// Made by tools/kubernetes/pod_types; do not edit.
namespace trainyard::api {

/// The version of Kubernetes whose types these are.
inline constexpr std::string_view kPodTypesVersion = "1.34.2";

/// The types below PodTemplateSpec. A line without indent names a type; the lines below it are its
/// fields, `name=form`, or `name!=form` where the field is required. A form is a type, a scalar
/// (string, bool, int32, quantity, ...), words `A|B`, a range `1..5`, a list `[form]` or
/// `[form/unique,keys]`, or a mapping `{form of keys:form of values}`.
inline constexpr std::string_view kPodTypes = R"(
PodTemplateSpec
 metadata=ObjectMeta spec=PodSpec
ObjectMeta
 annotations={labelKey:string} creationTimestamp=time deletionGracePeriodSeconds=int64
 deletionTimestamp=time finalizers=[string] generateName=string generation=int64
 labels={labelKey:labelValue} managedFields=[ManagedFieldsEntry] name=string namespace=string
 ownerReferences=[OwnerReference/uid] resourceVersion=string selfLink=string uid=string
ManagedFieldsEntry
 apiVersion=string fieldsType=string fieldsV1=any manager=string operation=string
 subresource=string time=time
OwnerReference
 apiVersion!=string blockOwnerDeletion=bool controller=bool kind!=string name!=string uid!=string
PodSpec
 activeDeadlineSeconds=1..2147483647 affinity=Affinity automountServiceAccountToken=bool
 containers!=[Container/name] dnsConfig=PodDNSConfig
 dnsPolicy=ClusterFirst|ClusterFirstWithHostNet|Default|None enableServiceLinks=bool
 ephemeralContainers=[EphemeralContainer/name] hostAliases=[HostAlias] hostIPC=bool
 hostNetwork=bool hostPID=bool hostUsers=bool hostname=label hostnameOverride=string
 imagePullSecrets=[LocalObjectReference] initContainers=[Container/name] nodeName=string
 nodeSelector={labelKey:labelValue} os=PodOS overhead={string:quantity}
 preemptionPolicy=PreemptLowerPriority|Never priority=int32 priorityClassName=subdomain
 readinessGates=[PodReadinessGate] resourceClaims=[PodResourceClaim/name]
 resources=ResourceRequirements restartPolicy=string runtimeClassName=subdomain
 schedulerName=string schedulingGates=[PodSchedulingGate/name] securityContext=PodSecurityContext
 serviceAccount=string serviceAccountName=subdomain setHostnameAsFQDN=bool
 shareProcessNamespace=bool subdomain=label terminationGracePeriodSeconds=0..9223372036854775807
 tolerations=[Toleration]
 topologySpreadConstraints=[TopologySpreadConstraint/topologyKey,whenUnsatisfiable]
 volumes=[Volume/name]
Affinity
 nodeAffinity=NodeAffinity podAffinity=PodAffinity podAntiAffinity=PodAntiAffinity
NodeAffinity
 preferredDuringSchedulingIgnoredDuringExecution=[PreferredSchedulingTerm]
 requiredDuringSchedulingIgnoredDuringExecution=NodeSelector
PreferredSchedulingTerm
 preference!=NodeSelectorTerm weight!=1..100
NodeSelectorTerm
 matchExpressions=[NodeSelectorRequirement] matchFields=[NodeSelectorRequirement]
NodeSelectorRequirement
 key!=labelKey operator!=In|NotIn|Exists|DoesNotExist|Gt|Lt values=[string]
NodeSelector
 nodeSelectorTerms!=[NodeSelectorTerm]
PodAffinity
 preferredDuringSchedulingIgnoredDuringExecution=[WeightedPodAffinityTerm]
 requiredDuringSchedulingIgnoredDuringExecution=[PodAffinityTerm]
WeightedPodAffinityTerm
 podAffinityTerm!=PodAffinityTerm weight!=1..100
PodAffinityTerm
 labelSelector=LabelSelector matchLabelKeys=[string] mismatchLabelKeys=[string]
 namespaceSelector=LabelSelector namespaces=[string] topologyKey!=labelKey
LabelSelector
 matchExpressions=[LabelSelectorRequirement] matchLabels={labelKey:labelValue}
LabelSelectorRequirement
 key!=labelKey operator!=In|NotIn|Exists|DoesNotExist values=[string]
PodAntiAffinity
 preferredDuringSchedulingIgnoredDuringExecution=[WeightedPodAffinityTerm]
 requiredDuringSchedulingIgnoredDuringExecution=[PodAffinityTerm]
Container
 args=[string] command=[string] env=[EnvVar] envFrom=[EnvFromSource] image=string
 imagePullPolicy=Always|IfNotPresent|Never lifecycle=Lifecycle livenessProbe=Probe name!=label
 ports=[ContainerPort/containerPort,protocol] readinessProbe=Probe
 resizePolicy=[ContainerResizePolicy] resources=ResourceRequirements
 restartPolicy=Always|OnFailure|Never restartPolicyRules=[ContainerRestartRule]
 securityContext=SecurityContext startupProbe=Probe stdin=bool stdinOnce=bool
 terminationMessagePath=string terminationMessagePolicy=File|FallbackToLogsOnError tty=bool
 volumeDevices=[VolumeDevice/devicePath] volumeMounts=[VolumeMount/mountPath] workingDir=string
EnvVar
 name!=variable value=string valueFrom=EnvVarSource
EnvVarSource
 configMapKeyRef=ConfigMapKeySelector fieldRef=ObjectFieldSelector fileKeyRef=FileKeySelector
 resourceFieldRef=ResourceFieldSelector secretKeyRef=SecretKeySelector
ConfigMapKeySelector
 key!=string name=string optional=bool
ObjectFieldSelector
 apiVersion=string fieldPath!=string
FileKeySelector
 key!=string optional=bool path!=string volumeName!=string
ResourceFieldSelector
 containerName=string divisor=quantity resource!=string
SecretKeySelector
 key!=string name=string optional=bool
EnvFromSource
 configMapRef=ConfigMapEnvSource prefix=string secretRef=SecretEnvSource
ConfigMapEnvSource
 name=string optional=bool
SecretEnvSource
 name=string optional=bool
Lifecycle
 postStart=LifecycleHandler preStop=LifecycleHandler stopSignal=string
LifecycleHandler
 exec=ExecAction httpGet=HTTPGetAction sleep=SleepAction tcpSocket=TCPSocketAction
ExecAction
 command=[string]
HTTPGetAction
 host=string httpHeaders=[HTTPHeader] path=string port!=port scheme=HTTP|HTTPS
HTTPHeader
 name!=string value!=string
SleepAction
 seconds!=int64
TCPSocketAction
 host=string port!=port
Probe
 exec=ExecAction failureThreshold=0..2147483647 grpc=GRPCAction httpGet=HTTPGetAction
 initialDelaySeconds=0..2147483647 periodSeconds=0..2147483647 successThreshold=0..2147483647
 tcpSocket=TCPSocketAction terminationGracePeriodSeconds=1..9223372036854775807
 timeoutSeconds=0..2147483647
GRPCAction
 port!=1..65535 service=string
ContainerPort
 containerPort!=1..65535 hostIP=string hostPort=0..65535 name=portName protocol=TCP|UDP|SCTP
ContainerResizePolicy
 resourceName!=string restartPolicy!=NotRequired|RestartContainer
ResourceRequirements
 claims=[ResourceClaim/name] limits={string:quantity} requests={string:quantity}
ResourceClaim
 name!=string request=string
ContainerRestartRule
 action!=Restart exitCodes=ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes
 operator!=In|NotIn values=[int32]
SecurityContext
 allowPrivilegeEscalation=bool appArmorProfile=AppArmorProfile capabilities=Capabilities
 privileged=bool procMount=Default|Unmasked readOnlyRootFilesystem=bool runAsGroup=0..2147483647
 runAsNonRoot=bool runAsUser=0..2147483647 seLinuxOptions=SELinuxOptions
 seccompProfile=SeccompProfile windowsOptions=WindowsSecurityContextOptions
AppArmorProfile
 localhostProfile=string type!=RuntimeDefault|Unconfined|Localhost
Capabilities
 add=[string] drop=[string]
SELinuxOptions
 level=string role=string type=string user=string
SeccompProfile
 localhostProfile=string type!=RuntimeDefault|Unconfined|Localhost
WindowsSecurityContextOptions
 gmsaCredentialSpec=string gmsaCredentialSpecName=string hostProcess=bool runAsUserName=string
VolumeDevice
 devicePath!=path name!=string
VolumeMount
 mountPath!=path mountPropagation=None|HostToContainer|Bidirectional name!=string readOnly=bool
 recursiveReadOnly=Disabled|IfPossible|Enabled subPath=string subPathExpr=string
PodDNSConfig
 nameservers=[string] options=[PodDNSConfigOption] searches=[string]
PodDNSConfigOption
 name=string value=string
EphemeralContainer
 args=[string] command=[string] env=[EnvVar] envFrom=[EnvFromSource] image=string
 imagePullPolicy=Always|IfNotPresent|Never lifecycle=Lifecycle livenessProbe=Probe name!=string
 ports=[ContainerPort/containerPort,protocol] readinessProbe=Probe
 resizePolicy=[ContainerResizePolicy] resources=ResourceRequirements restartPolicy=string
 restartPolicyRules=[ContainerRestartRule] securityContext=SecurityContext startupProbe=Probe
 stdin=bool stdinOnce=bool targetContainerName=string terminationMessagePath=string
 terminationMessagePolicy=File|FallbackToLogsOnError tty=bool
 volumeDevices=[VolumeDevice/devicePath] volumeMounts=[VolumeMount/mountPath] workingDir=string
HostAlias
 hostnames=[string] ip!=string
LocalObjectReference
 name=string
PodOS
 name!=linux|windows
PodReadinessGate
 conditionType!=string
PodResourceClaim
 name!=string resourceClaimName=string resourceClaimTemplateName=string
PodSchedulingGate
 name!=string
PodSecurityContext
 appArmorProfile=AppArmorProfile fsGroup=0..2147483647 fsGroupChangePolicy=OnRootMismatch|Always
 runAsGroup=0..2147483647 runAsNonRoot=bool runAsUser=0..2147483647
 seLinuxChangePolicy=Recursive|MountOption seLinuxOptions=SELinuxOptions
 seccompProfile=SeccompProfile supplementalGroups=[0..2147483647]
 supplementalGroupsPolicy=Merge|Strict sysctls=[Sysctl]
 windowsOptions=WindowsSecurityContextOptions
Sysctl
 name!=string value!=string
Toleration
 effect=NoSchedule|PreferNoSchedule|NoExecute key=labelKey operator=Exists|Equal
 tolerationSeconds=int64 value=string
TopologySpreadConstraint
 labelSelector=LabelSelector matchLabelKeys=[string] maxSkew!=1..2147483647
 minDomains=1..2147483647 nodeAffinityPolicy=Honor|Ignore nodeTaintsPolicy=Honor|Ignore
 topologyKey!=labelKey whenUnsatisfiable!=DoNotSchedule|ScheduleAnyway
Volume
 awsElasticBlockStore=AWSElasticBlockStoreVolumeSource azureDisk=AzureDiskVolumeSource
 azureFile=AzureFileVolumeSource cephfs=CephFSVolumeSource cinder=CinderVolumeSource
 configMap=ConfigMapVolumeSource csi=CSIVolumeSource downwardAPI=DownwardAPIVolumeSource
 emptyDir=EmptyDirVolumeSource ephemeral=EphemeralVolumeSource fc=FCVolumeSource
 flexVolume=FlexVolumeSource flocker=FlockerVolumeSource
 gcePersistentDisk=GCEPersistentDiskVolumeSource gitRepo=GitRepoVolumeSource
 glusterfs=GlusterfsVolumeSource hostPath=HostPathVolumeSource image=ImageVolumeSource
 iscsi=ISCSIVolumeSource name!=label nfs=NFSVolumeSource
 persistentVolumeClaim=PersistentVolumeClaimVolumeSource
 photonPersistentDisk=PhotonPersistentDiskVolumeSource portworxVolume=PortworxVolumeSource
 projected=ProjectedVolumeSource quobyte=QuobyteVolumeSource rbd=RBDVolumeSource
 scaleIO=ScaleIOVolumeSource secret=SecretVolumeSource storageos=StorageOSVolumeSource
 vsphereVolume=VsphereVirtualDiskVolumeSource
AWSElasticBlockStoreVolumeSource
 fsType=string partition=int32 readOnly=bool volumeID!=string
AzureDiskVolumeSource
 cachingMode=string diskName!=string diskURI!=string fsType=string kind=string readOnly=bool
AzureFileVolumeSource
 readOnly=bool secretName!=string shareName!=string
CephFSVolumeSource
 monitors!=[string] path=string readOnly=bool secretFile=string secretRef=LocalObjectReference
 user=string
CinderVolumeSource
 fsType=string readOnly=bool secretRef=LocalObjectReference volumeID!=string
ConfigMapVolumeSource
 defaultMode=0..511 items=[KeyToPath] name=string optional=bool
KeyToPath
 key!=string mode=0..511 path!=string
CSIVolumeSource
 driver!=string fsType=string nodePublishSecretRef=LocalObjectReference readOnly=bool
 volumeAttributes={string:string}
DownwardAPIVolumeSource
 defaultMode=0..511 items=[DownwardAPIVolumeFile]
DownwardAPIVolumeFile
 fieldRef=ObjectFieldSelector mode=0..511 path!=string resourceFieldRef=ResourceFieldSelector
EmptyDirVolumeSource
 medium=string sizeLimit=quantity
EphemeralVolumeSource
 volumeClaimTemplate=PersistentVolumeClaimTemplate
PersistentVolumeClaimTemplate
 metadata=ObjectMeta spec!=PersistentVolumeClaimSpec
PersistentVolumeClaimSpec
 accessModes=[ReadWriteOnce|ReadOnlyMany|ReadWriteMany|ReadWriteOncePod]
 dataSource=TypedLocalObjectReference dataSourceRef=TypedObjectReference
 resources=VolumeResourceRequirements selector=LabelSelector storageClassName=string
 volumeAttributesClassName=string volumeMode=Block|Filesystem volumeName=string
TypedLocalObjectReference
 apiGroup=string kind!=string name!=string
TypedObjectReference
 apiGroup=string kind!=string name!=string namespace=string
VolumeResourceRequirements
 limits={string:quantity} requests={string:quantity}
FCVolumeSource
 fsType=string lun=int32 readOnly=bool targetWWNs=[string] wwids=[string]
FlexVolumeSource
 driver!=string fsType=string options={string:string} readOnly=bool
 secretRef=LocalObjectReference
FlockerVolumeSource
 datasetName=string datasetUUID=string
GCEPersistentDiskVolumeSource
 fsType=string partition=int32 pdName!=string readOnly=bool
GitRepoVolumeSource
 directory=string repository!=string revision=string
GlusterfsVolumeSource
 endpoints!=string path!=string readOnly=bool
HostPathVolumeSource
 path!=string type=DirectoryOrCreate|Directory|FileOrCreate|File|Socket|CharDevice|BlockDevice
ImageVolumeSource
 pullPolicy=Always|IfNotPresent|Never reference=string
ISCSIVolumeSource
 chapAuthDiscovery=bool chapAuthSession=bool fsType=string initiatorName=string iqn!=string
 iscsiInterface=string lun!=int32 portals=[string] readOnly=bool secretRef=LocalObjectReference
 targetPortal!=string
NFSVolumeSource
 path!=string readOnly=bool server!=string
PersistentVolumeClaimVolumeSource
 claimName!=subdomain readOnly=bool
PhotonPersistentDiskVolumeSource
 fsType=string pdID!=string
PortworxVolumeSource
 fsType=string readOnly=bool volumeID!=string
ProjectedVolumeSource
 defaultMode=0..511 sources=[VolumeProjection]
VolumeProjection
 clusterTrustBundle=ClusterTrustBundleProjection configMap=ConfigMapProjection
 downwardAPI=DownwardAPIProjection podCertificate=PodCertificateProjection
 secret=SecretProjection serviceAccountToken=ServiceAccountTokenProjection
ClusterTrustBundleProjection
 labelSelector=LabelSelector name=string optional=bool path!=string signerName=string
ConfigMapProjection
 items=[KeyToPath] name=string optional=bool
DownwardAPIProjection
 items=[DownwardAPIVolumeFile]
PodCertificateProjection
 certificateChainPath=string credentialBundlePath=string keyPath=string keyType!=string
 maxExpirationSeconds=int32 signerName!=string
SecretProjection
 items=[KeyToPath] name=string optional=bool
ServiceAccountTokenProjection
 audience=string expirationSeconds=600..4294967296 path!=string
QuobyteVolumeSource
 group=string readOnly=bool registry!=string tenant=string user=string volume!=string
RBDVolumeSource
 fsType=string image!=string keyring=string monitors!=[string] pool=string readOnly=bool
 secretRef=LocalObjectReference user=string
ScaleIOVolumeSource
 fsType=string gateway!=string protectionDomain=string readOnly=bool
 secretRef!=LocalObjectReference sslEnabled=bool storageMode=string storagePool=string
 system!=string volumeName=string
SecretVolumeSource
 defaultMode=0..511 items=[KeyToPath] optional=bool secretName=string
StorageOSVolumeSource
 fsType=string readOnly=bool secretRef=LocalObjectReference volumeName=string
 volumeNamespace=string
VsphereVirtualDiskVolumeSource
 fsType=string storagePolicyID=string storagePolicyName=string volumePath!=string
)";

}  // namespace trainyard::api
