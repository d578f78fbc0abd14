"""The search page, one Gradio app: of an index on this machine, and of a published model as a Space of the Hub."""
