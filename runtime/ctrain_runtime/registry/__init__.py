"""The registry API of OCI and Docker: client, HTTP, logins. Needs the package requests."""
