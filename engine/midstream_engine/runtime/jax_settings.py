"""Settings of jax: its compile cache, its options, and the precision of products."""

from __future__ import annotations

import logging
import os

import jax

from midstream_core.object_store.urls import in_bucket
from midstream_engine.base_directory import resolved_path
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.runtime.jax_programs import keep_jax_programs
from midstream_engine.runtime.program_files import share_programs

XLA_CACHES = "jax_persistent_cache_enable_xla_caches"
log = logging.getLogger(__name__)


def configure_jax(config: TrainLmConfig, root: str) -> str:
    """Configure jax: the compile cache and the options in ``trainer.jax_config``.

    Returns:
        The directory of the compile cache.

    Raises:
        ConfigError: An option or its value is unknown to jax, or a required accelerator is missing.
    """
    trainer = config.trainer
    chosen = trainer.jax_compilation_cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    directory = chosen or os.path.join(root, "compile-cache")
    if in_bucket(directory):
        url, directory = directory, os.path.join(root, "compile-cache")
        share_programs(directory, url)
    else:
        directory = resolved_path(directory)
    jax.config.update("jax_compilation_cache_dir", directory)
    keep_jax_programs()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if XLA_CACHES.upper() not in os.environ:
        # jax 0.10 hashes the directory of XLA's own caches into the names of programs, so a host with another root
        # would find none of a shared cache. XLA's caches are of use only where programs are compiled again.
        jax.config.update(XLA_CACHES, "none")
    for name, value in trainer.jax_config.items():
        try:
            jax.config.update(name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"trainer.jax_config.{name}: {value!r}: {' '.join(str(error).split())}") from None
    if trainer.require_accelerator and jax.default_backend() == "cpu":
        raise ConfigError("trainer.require_accelerator is true, but jax finds no accelerator on this host")
    return directory


def log_precision(config: TrainLmConfig, platform: str) -> None:
    """Log how products of float32 numbers are computed, if on accelerators.

    Also warn of jax's variable for it, which has no effect.
    """
    trainer = config.trainer
    if variable := os.environ.get("JAX_DEFAULT_MATMUL_PRECISION"):
        log.warning(
            "JAX_DEFAULT_MATMUL_PRECISION=%s has no effect: trainer.matmul_precision is %s",
            variable, trainer.matmul_precision,
        )  # fmt: skip
    if platform == "cpu" or trainer.precision().compute != "float32":
        return
    if trainer.precision_of_products() is None:
        log.info(
            "float32 products are computed in the accelerator's default precision (TF32, bfloat16), which other "
            "accelerators do not have: losses after a migration are compared within 2e-2"
        )
        return
    log.info(
        "float32 products are computed in float32; trainer.mp: %s or trainer.matmul_precision: default is faster",
        "p=f32,c=bfloat16" if trainer.precision().parameters == "float32" else trainer.precision().parameters,
    )
