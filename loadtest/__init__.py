"""`make loadtest`: load on a server over HTTP, with every reply checked and a verdict at the end.

Knows the HTTP interface only, so that it works against any server that answers like OpenAI's `/v1/embeddings`.
"""
