# SPDX-License-Identifier: Apache-2.0
"""What a push changes on the Hub, file by file, and how that is shown."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..model.checkpoint_files import shown_size, stale_weights

__all__ = ["FileChange", "PushReport", "compare_files", "is_same", "stale_graphs"]

CHANGES = ("new", "changed", "deleted", "unchanged")


@dataclasses.dataclass(frozen=True)
class FileChange:
    """One file of a push. `change` is "new", "changed", "unchanged" or "deleted"; `size` is in bytes."""

    path: str
    size: int
    change: str


@dataclasses.dataclass(frozen=True)
class PushReport:
    """What a push did, or with `dry_run` would do. `str(report)` is a table.

    Attributes:
        url (`str`): of the repository, or of the branch in it.
        commit (`str`, *optional*): the one that was made; where nothing differed, and in a dry run, that of the branch.
        pull_request (`str`, *optional*): its address.
        left_out (`dict[str, str]`): what of the folder is not published -> why.
        kept_on_hub (`tuple[str]`): files that are only on the Hub, and stay.
        problems (`tuple[str]`): of a dry run, for what a push would be refused.
    """

    repo_id: str
    url: str
    branch: str
    commit: str | None
    tag: str | None
    pull_request: str | None
    files: tuple[FileChange, ...]
    left_out: Mapping[str, str]
    kept_on_hub: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        counts = {change: sum(file.change == change for file in self.files) for change in CHANGES}
        summary = ", ".join(f"{count} {change}" for change, count in counts.items() if count) or "no files"
        size = shown_size(sum(file.size for file in self.files if file.change in ("new", "changed")))
        lines = [f"{self.repo_id}, branch {self.branch}: {summary}; {size} {'to send' if self.dry_run else 'sent'}"]
        order = sorted(self.files, key=lambda file: (CHANGES.index(file.change), file.path))
        lines += [f"  {file.change:<9}  {shown_size(file.size):>8}  {file.path}" for file in order]
        lines += [f"left out: {path} ({reason})" for path, reason in self.left_out.items()]
        lines += [f"only on the Hub, and kept: {path}" for path in self.kept_on_hub]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.dry_run:
            refused = "; a push would be refused for the problems" if self.problems else ""
            lines.append(f"a dry run: nothing was sent{refused}")
        else:
            lines.append(
                f"{self.pull_request or self.url}: commit {self.commit}" + (f", tag {self.tag}" if self.tag else "")
            )
        return "\n".join(lines)


def compare_files(files: Mapping[str, Path], there: Mapping[str, Any]) -> tuple[FileChange, ...]:
    """What becomes of each file.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        there (`dict[str, RepoFile]`): path -> what huggingface_hub says of the Hub's file.
    """
    changes = []
    for path, file in files.items():
        change = "new" if path not in there else "unchanged" if is_same(file, there[path]) else "changed"
        changes.append(FileChange(path, file.stat().st_size, change))
    return (*changes, *(FileChange(path, there[path].size, "deleted") for path in stale_weights(there, files)))


def stale_graphs(changes: Iterable[FileChange], kept: Iterable[str]) -> list[str]:
    """Graphs of ONNX that stay on the Hub though the weights that they were perhaps exported from are replaced."""
    has_new_weights = any(
        file.change in ("new", "changed") and file.path.endswith((".safetensors", ".bin", ".onnx")) for file in changes
    )
    return [path for path in kept if path.endswith(".onnx")] if has_new_weights else []


def is_same(file: Path, there: Any) -> bool:
    """Whether the Hub has just these bytes: it knows git's hash of a small file, and the SHA-256 of one in LFS."""
    size = file.stat().st_size
    if size != there.size:
        return False
    digest = hashlib.sha256() if there.lfs is not None else hashlib.sha1(b"blob %d\0" % size)
    with open(file, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest() == (there.blob_id if there.lfs is None else there.lfs.sha256)
