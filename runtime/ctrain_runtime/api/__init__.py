"""What programs use of ctrain: `import ctrain`. It prints nothing and handles no signals. Page: docs/api.md."""
