"""Puts the pip of the base interpreter into a virtual environment.

This stands in for the standard library's ensurepip, which this build of Python
comes without. It needs no network.
"""

import argparse
import os
import shutil
import sys
import sysconfig


def version():
    """Return the version of pip that is installed by bootstrap()."""
    import importlib.metadata

    paths = [sysconfig.get_path("purelib", vars={"base": sys.base_prefix})]
    return next(d.version for d in importlib.metadata.distributions(name="pip", path=paths))


def bootstrap(*, root=None, upgrade=False, user=False, altinstall=False,
              default_pip=True, verbosity=0):
    """Install pip into the current environment; a no-op in the base one."""
    source = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    target = (root or "") + sysconfig.get_path("purelib")
    scripts = (root or "") + sysconfig.get_path("scripts")
    if os.path.realpath(source) == os.path.realpath(target):
        return
    os.makedirs(target, exist_ok=True)
    os.makedirs(scripts, exist_ok=True)
    for name in os.listdir(source):
        if name == "pip" or name.startswith("pip-") and name.endswith(".dist-info"):
            shutil.copytree(os.path.join(source, name), os.path.join(target, name), dirs_exist_ok=True)
    major, minor = sys.version_info[:2]
    for name in ("pip", f"pip{major}", f"pip{major}.{minor}"):
        path = os.path.join(scripts, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"#!{sys.executable}\nimport sys\n"
                    "from pip._internal.cli.main import main\nsys.exit(main())\n")
        os.chmod(path, 0o755)


def _main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m ensurepip")
    parser.add_argument("--version", action="version", version=f"pip {version()}")
    parser.add_argument("-v", "--verbose", action="count", default=0)
    parser.add_argument("-U", "--upgrade", action="store_true")
    parser.add_argument("--user", action="store_true")
    parser.add_argument("--root")
    parser.add_argument("--altinstall", action="store_true")
    parser.add_argument("--default-pip", action="store_true")
    args = parser.parse_args(argv)
    bootstrap(root=args.root)
    return 0
