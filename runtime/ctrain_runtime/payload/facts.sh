#!/bin/sh
# Inside an image that ctrain did not build: what it is made of, a line for each fact that a shell can learn, then what a
# Python that is new enough prints.
#
#   facts.sh PROGRAM [DIRECTORY]...: where libraries of CUDA for older drivers may be
program=$1
shift
echo "cuda ${CUDA_VERSION-}"
echo "arch ${TORCH_CUDA_ARCH_LIST-}"
for directory do
  for library in "$directory"/libcuda.so.*.*; do
    [ ! -e "$library" ] || echo "cuda-compat ${library##*/libcuda.so.}"
  done
done
getconf GNU_LIBC_VERSION 2>/dev/null || for library in /lib/ld-musl-*; do [ ! -e "$library" ] || echo musl yes; done
if python3 -c "import importlib.metadata" 2>/dev/null; then exec python3 -c "$program"; fi
