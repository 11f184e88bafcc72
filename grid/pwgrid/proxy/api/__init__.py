"""The HTTP API: health, readiness, metrics, workers, sessions."""

from pydantic import BaseModel


def _import_fastapi() -> None:
    """Imports FastAPI before any module here does. Its models of an OpenAPI document would be a third of its import and
    2 MiB in each process of the grid: so these are built when somebody asks for the document."""
    BaseModel.model_config["defer_build"] = True  # for all models that are defined until it is taken back
    try:
        import fastapi.openapi.models  # noqa: F401
    finally:
        del BaseModel.model_config["defer_build"]


_import_fastapi()
