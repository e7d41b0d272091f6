"""What the API server's audit log says of a stretch of time."""

import collections
import dataclasses
import datetime
import json

WRITES = ("create", "update", "patch", "delete", "deletecollection")


def _seconds(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@dataclasses.dataclass
class Event:
    """One answered request."""
    user: str
    verb: str
    resource: str  # with its subresource: "pods/status"
    namespace: str
    name: str
    code: int
    dry_run: bool
    received: float  # wall time
    answered: float


def _event(line):
    raw = json.loads(line)
    target = raw.get("objectRef", {})
    if raw["stage"] != "ResponseComplete" or not target or raw["verb"] == "watch":
        return None
    resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
    return Event(raw["user"]["username"], raw["verb"], resource, target.get("namespace", ""),
                 target.get("name", ""), raw.get("responseStatus", {}).get("code", 0), "dryRun=" in raw["requestURI"],
                 _seconds(raw["requestReceivedTimestamp"]), _seconds(raw["stageTimestamp"]))


class AuditLog:
    """Reads the log from where it stood when this was made."""

    def __init__(self, path):
        self._path = path
        self._offset = path.stat().st_size

    def read(self):
        """Events since then, without watches; a line that is being written is left for later."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            lines = file.read().split(b"\n")
        return [event for event in map(_event, filter(None, lines[:-1])) if event is not None]


def writes(events, user=None):
    """Counts by "verb resource" of what may change something."""
    counts = collections.Counter()
    for event in events:
        if event.verb in WRITES and (user is None or event.user == user):
            counts[f"{event.verb} {event.resource}{' (dry run)' if event.dry_run else ''}"] += 1
    return counts


def pods_made(events, namespace):
    """Successful creations of pods there."""
    return [event for event in events if event.namespace == namespace and event.verb == "create" and
            event.resource == "pods" and event.code == 201 and not event.dry_run]
