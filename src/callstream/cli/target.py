"""``module:name``: the agent that a command is to serve or inspect."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from callstream.cli.output import CommandError, misused

_NAMES = ("app", "root_agent", "agent")
"""The names that google-adk's own tools look for, too, in this order."""
HELP = (
    "module:name, path/to/file.py:name, or a google-adk agent folder; the name may be left out (app, root_agent, agent)"
)


class Target(NamedTuple):
    """What was named, where it was found, and under which name."""

    text: str
    found: Any
    name: str
    file: Path | None
    module: ModuleType


def load_target(text: str, *, env_file: str | None = None) -> Target:
    """Imports the module and returns the object in it. The current folder is on the path, as with ``python -m``.

    As with google-adk's own commands, variables from the ``.env`` beside the application are set, unless they are already.
    """
    place, name = _split(text)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    path = Path(place)
    if path.is_dir() and (path / "agent.py").is_file():
        _load_variables(path / ".env", env_file)
        module = _package(path)
    elif place.endswith(".py"):
        if not path.is_file():
            raise misused(f"file {place} not found")
        _load_variables(path.parent / ".env", env_file)
        module = _file(path)
    else:
        _load_variables(Path(".env"), env_file)
        module = _import_module(place)
    file = Path(module.__file__) if module.__file__ else None
    return _find(text, module, name, file)


def _split(text: str) -> tuple[str, str | None]:
    place, colon, name = text.rpartition(":")
    if not colon:
        return text, None
    # A drive's letter is not a module.
    return (text, None) if len(place) == 1 and name[:1] in ("\\", "/") else (place, name)


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            if Path(name).is_dir():
                raise misused(f"folder {name} has no agent.py, which the folder of a google-adk agent has") from error
            raise misused(f"no module {name!r} in this folder or on Python's path") from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _package(folder: Path) -> ModuleType:
    """``agent.py`` in a folder, imported as the package's module so that its relative imports work."""
    folder = folder.resolve()
    if not folder.name.isidentifier():
        raise misused(
            f"a google-adk agent folder has to be a Python package; {folder.name!r} is not a valid package name"
        )
    sys.path.insert(0, str(folder.parent))
    return _import_module(f"{folder.name}.agent")


def _file(path: Path) -> ModuleType:
    path = path.resolve()
    if (path.parent / "__init__.py").is_file() and path.stem.isidentifier() and path.parent.name.isidentifier():
        sys.path.insert(0, str(path.parent.parent))
        return _import_module(f"{path.parent.name}.{path.stem}")
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "callstream_target"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise misused(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its classes may look up their own module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _broken(str(path), error) from error
    return module


def _find(text: str, module: ModuleType, name: str | None, file: Path | None) -> Target:
    if name is not None:
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                there = [each for each in _NAMES if hasattr(module, each)]
                hint = f"; it has {' and '.join(there)}" if there else ""
                raise misused(f"{module.__name__} has no {name!r}{hint}")
            found = getattr(found, part)
        return Target(text, found, name, file, module)
    for each in _NAMES:
        if hasattr(module, each) and not isinstance(getattr(module, each), ModuleType):
            return Target(text, getattr(module, each), each, file, module)
    raise misused(f"{module.__name__} has none of {', '.join(_NAMES)}: name the agent, as in {text}:my_agent")


def _broken(name: str, error: Exception) -> CommandError:
    return CommandError(f"{name} cannot be imported: {type(error).__name__}: {error}")


def _load_variables(beside: Path, named: str | None) -> None:
    file = Path(named) if named is not None else beside
    if not file.is_file():
        if named is not None:
            raise misused(f"file {named} not found")
        return
    try:
        from dotenv import dotenv_values  # google-adk brings it
    except ImportError:
        if named is not None:
            raise misused("--env-file needs python-dotenv: pip install python-dotenv") from None
        return
    for variable, value in dotenv_values(file).items():
        if value is not None:
            os.environ.setdefault(variable, value)
