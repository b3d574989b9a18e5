"""GPUs that the planner knows: what their data sheets say, and how nodes say that they have them.

Peaks are those without sparsity, and of the variant with NVLink where there are several. TensorFlow
multiplies float32 as TF32 on GPUs that can (Ampere and later), so the peak of float32 is that.
"""

import dataclasses
from collections.abc import Mapping

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Set by NVIDIA's GPU feature discovery."""

ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
"""Set by Google Kubernetes Engine."""

_MIB = 2**20
_CONTEXT = 512 * _MIB
"""What CUDA takes of a GPU, roughly."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """A GPU."""

    name: str
    products: tuple[str, ...]
    """Values of `PRODUCT_LABEL`."""
    accelerators: tuple[str, ...] = ()
    """Values of `ACCELERATOR_LABEL`."""
    memory_mib: int
    """As `nvidia-smi` shows it."""
    single: float
    """Peak of float32 in 1e12 operations a second."""
    half: float
    """Peak of float16 and bfloat16."""
    double: float
    """Peak of float64."""
    bandwidth: float
    """Of its memory, in 1e9 bytes a second."""
    link: float
    """To a GPU of the same node, by NVLink or PCIe, in 1e9 bytes a second and direction."""
    reserved_mib: int = 1536
    """What TensorFlow leaves to the system: 1,050 MiB on GPUs before Ampere."""

    @property
    def memory(self) -> int:
        """Bytes that TensorFlow may take for tensors."""
        return (self.memory_mib - self.reserved_mib) * _MIB - _CONTEXT

    @property
    def flops(self) -> Mapping[str, float]:
        """Peak in operations a second, by the type of the numbers."""
        return {
            "float32": self.single * 1e12,
            "float16": self.half * 1e12,
            "bfloat16": self.half * 1e12,
            "float64": self.double * 1e12,
        }


_TYPES = (
    DeviceType(
        name="T4",
        products=("Tesla-T4",),
        accelerators=("nvidia-tesla-t4",),
        memory_mib=15_360,
        single=8.1,
        half=65,
        double=0.25,
        bandwidth=320,
        link=16,
        reserved_mib=1_050,
    ),
    DeviceType(
        name="V100-16GB",
        products=("Tesla-V100-SXM2-16GB",),
        accelerators=("nvidia-tesla-v100",),
        memory_mib=16_384,
        single=15.7,
        half=125,
        double=7.8,
        bandwidth=900,
        link=150,
        reserved_mib=1_050,
    ),
    DeviceType(
        name="V100-32GB",
        products=("Tesla-V100-SXM2-32GB", "Tesla-V100-SXM3-32GB"),
        memory_mib=32_768,
        single=15.7,
        half=125,
        double=7.8,
        bandwidth=900,
        link=150,
        reserved_mib=1_050,
    ),
    DeviceType(
        name="A10G",
        products=("NVIDIA-A10G",),
        memory_mib=23_028,
        single=35,
        half=70,
        double=0.49,
        bandwidth=600,
        link=32,
    ),
    DeviceType(
        name="L4",
        products=("NVIDIA-L4",),
        accelerators=("nvidia-l4",),
        memory_mib=23_034,
        single=60,
        half=121,
        double=0.47,
        bandwidth=300,
        link=32,
    ),
    DeviceType(
        name="L40S",
        products=("NVIDIA-L40S",),
        memory_mib=46_068,
        single=183,
        half=362,
        double=1.4,
        bandwidth=864,
        link=32,
    ),
    DeviceType(
        name="A100-40GB",
        products=("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        accelerators=("nvidia-tesla-a100",),
        memory_mib=40_960,
        single=156,
        half=312,
        double=19.5,
        bandwidth=1_555,
        link=300,
    ),
    DeviceType(
        name="A100-80GB",
        products=("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
        accelerators=("nvidia-a100-80gb",),
        memory_mib=81_920,
        single=156,
        half=312,
        double=19.5,
        bandwidth=2_039,
        link=300,
    ),
    DeviceType(
        name="H100-80GB",
        products=("NVIDIA-H100-80GB-HBM3",),
        accelerators=("nvidia-h100-80gb", "nvidia-h100-mega-80gb"),
        memory_mib=81_559,
        single=494,
        half=989,
        double=67,
        bandwidth=3_350,
        link=450,
    ),
    DeviceType(
        name="H200",
        products=("NVIDIA-H200",),
        accelerators=("nvidia-h200-141gb",),
        memory_mib=143_771,
        single=494,
        half=989,
        double=67,
        bandwidth=4_800,
        link=450,
    ),
    DeviceType(
        name="B200",
        products=("NVIDIA-B200",),
        accelerators=("nvidia-b200",),
        memory_mib=183_359,
        single=1_100,
        half=2_250,
        double=37,
        bandwidth=8_000,
        link=900,
    ),
)

DEVICE_TYPES: Mapping[str, DeviceType] = {
    device.name: device for device in sorted(_TYPES, key=lambda device: device.memory)
}
"""By name, those with less memory first."""


def find_by_labels(labels: Mapping[str, str]) -> DeviceType | None:
    """Return the GPU of nodes with these labels; None if they name none that is known."""
    for device in DEVICE_TYPES.values():
        if (
            labels.get(PRODUCT_LABEL) in device.products
            or labels.get(ACCELERATOR_LABEL) in device.accelerators
        ):
            return device
    return None


def find_by_name(name: str) -> DeviceType | None:
    """Return the GPU that CUDA calls so, such as Tesla T4; None if it is not known."""
    return find_by_labels({PRODUCT_LABEL: name.replace(" ", "-")})
