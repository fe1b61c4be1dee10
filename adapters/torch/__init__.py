"""Read PyTorch datasets and loaders as sources, and turn records and streams into tensors.

``storage.cache(x, ...)`` takes a ``Dataset``, ``IterableDataset`` or ``DataLoader`` as it is. :func:`loader` iterates
over a stream as tensors, with a state. :func:`to_torch` returns a map-style ``Dataset``; :class:`Sampler` and
:class:`BatchSampler` let any ``torch.utils.data.DataLoader`` read it in our exact order.

===============  ==================================================================================
``datasets``     PyTorch's datasets and loaders as sources, and :func:`to_torch`
``loading``      :func:`loader` and its worker processes
``samplers``     :class:`Sampler` and :class:`BatchSampler`
``as_tensors``   arrays as tensors
===============  ==================================================================================
"""

from cachelayer.support.extras import packages_of

with packages_of("torch", "this needs PyTorch"):
    from cachelayer.adapters.torch.as_tensors import keyed_generators as keyed_generators
    from cachelayer.adapters.torch.as_tensors import tensors
    from cachelayer.adapters.torch.datasets import as_source, to_torch
    from cachelayer.adapters.torch.loading import Loader, loader
    from cachelayer.adapters.torch.samplers import BatchSampler, Sampler

__all__ = ["BatchSampler", "Loader", "Sampler", "as_source", "loader", "tensors", "to_torch"]
