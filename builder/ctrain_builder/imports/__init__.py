"""What users have - Dockerfiles, Singularity recipes, lists of packages - as definitions and requirements files."""
