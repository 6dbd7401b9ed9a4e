"""Sites, the profiles of clusters: what their files may say, which one applies, what its values rest on."""
