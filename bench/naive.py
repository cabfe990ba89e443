"""The server that one writes first: FastAPI, sentence-transformers, `encode` in a sync route, every default."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Body(BaseModel):
    """One text or several, as OpenAI's clients send them."""

    input: str | list[str]


def create_app(model_dir: str) -> FastAPI:
    """The naive server over a sentence-transformers directory."""
    model = SentenceTransformer(model_dir)
    app = FastAPI()

    @app.post("/v1/embeddings")
    def embed(body: Body) -> dict[str, list[dict[str, list[float]]]]:
        texts = [body.input] if isinstance(body.input, str) else body.input
        return {"data": [{"embedding": vector.tolist()} for vector in model.encode(texts)]}

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1]), port=int(sys.argv[2]), log_level="warning")
