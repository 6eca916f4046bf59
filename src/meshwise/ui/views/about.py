"""The view of `about`: a line per fact."""

from meshwise.catalogue.installed import Installed
from meshwise.units import GIB


def about_view(found: Installed, width: int) -> str:
    own = f"{len(found.own_files)} files: {', '.join(found.own_files[:5])}" if found.own_files else "no files"
    lines = [
        ("meshwise", f"{found.version}, commit {found.commit}, data of {found.data_date}"), ("Python", found.python),
        ("data", found.data), ("your data", f"{found.own} ({own})"),
        *((f"[{name}]", f"missing {', '.join(lacks)}: pip install 'meshwise[{name}]'" if lacks else "installed")
          for name, lacks in found.extras.items()),
        ("GPUs", ", ".join(found.gpus) or "none seen"), ("memory", f"{found.host_memory / GIB:.0f} GiB"),
        *(("engine", f"{name}: {sign}") for name, sign in found.engines.items()),
        *(("trains with", f"{name}: {sign}") for name, sign in found.frameworks.items()),
    ]  # fmt: skip
    return "\n".join(f"{name:<11} {value}" for name, value in lines)
