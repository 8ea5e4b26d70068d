"""What pyproject.toml cannot say: `conf/`, at the top of the tree, is inside the package once that is installed."""

from setuptools import find_namespace_packages, setup

CODE = ("attention_zoo*", "bench*", "analysis*")

setup(packages=[*find_namespace_packages(include=CODE), "bench.conf"], package_dir={"bench.conf": "conf"})
