"""The processes of one attempt: how they find each other, agree, and notice who is gone. Standard library and jax."""
