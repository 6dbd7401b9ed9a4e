"""From job, site, image, options and facts to one frozen launch plan, before anything runs."""
