"""SGLang, through its SamplingObserver (0.5.23). Not run on a GPU. Nothing here imports SGLang before it is used."""
