"""The application: one typed question and one typed answer for each verb."""
