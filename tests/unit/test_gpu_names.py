"""The meaning of GPU names: names that Slurm sites, Ray and drivers use, as they publish them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval._gpus import memory_gib, read
from coordinate_eval.priors import gpus

NAMES = [
    # Slurm's own detection and NVIDIA's driver: https://slurm.schedmd.com/gres.html,
    # NVIDIA/deepops#1157, SlinkyProject/slurm-operator#111, Azure/azurehpc#537,
    # https://canonical-charmed-hpc.readthedocs-hosted.com/en/latest/explanation/gpus/slurmconf/
    ("nvidia_a100-sxm4-80gb", 80),
    ("nvidia_a100_80gb_pcie", 80),
    ("NVIDIA H100 80GB HBM3", 80),
    ("nvidia_h100_pcie", 80),
    ("NVIDIA H100 NVL", 94),
    ("h100-nvl-94gb", 94),
    ("nvidia_h200", 141),
    ("nvidia_gb200", 186),
    ("nvidia_l40s", 48),
    ("tesla_t4", 16),
    ("tesla_v100-sxm2-32gb", 32),
    ("Tesla_V100-SXM2-16GB", 16),
    ("tesla_p100-pcie-12gb", 12),
    ("nvidia_rtx_a6000", 48),
    ("nvidia_rtx_6000_ada_generation", 48),
    ("nvidia_rtx_pro_6000_blackwell_max-q_workstation_edition", 96),
    ("nvidia_geforce_rtx_4070_ti_super", 16),
    ("nvidia_geforce_gtx_1080_ti", 11),
    ("quadro_rtx_8000", 48),
    # The size is that of the Grace's memory: https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/
    ("nvidia_gh200_480gb", 96),
    ("NVIDIA GH200 144G HBM3e", 144),
    # Slices: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html,
    # stackhpc/ansible-slurm-appliance#656, NVIDIA/deepops#1214,
    # ComputeCanada/puppet-magic_castle#273, and job scripts for Alliance Canada, UQ's Bunya, UBC
    ("nvidia_a100_1g.5gb", 5),
    ("nvidia_a100-sxm4-80gb_mig_1g_10gb", 10),
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10),
    ("a100_80gb_1g.10gb", 10),
    ("h100_pcie_2g.20gb", 20),
    ("h100_7g.80gb", 80),
    ("1g.10gb", 10),
    ("1g.10gb+me", 10),
    ("1c.3g.20gb", 20),
    ("mig-3g.71gb", 71),
    # Names that sites have chosen. Wulver (https://hpc.njit.edu), the School of Computing of NUS,
    # Mila (https://docs.mila.quebec), Alliance Canada (https://docs.alliancecan.ca), Leonardo
    # (https://leonardo-supercomputer.cineca.eu): A100 of 64 GB, MareNostrum 5: H100 of 64 GB
    ("a100_80g", 80),
    ("a100_20g", 20),
    ("a100_10gb", 10),
    ("a100-80", 80),
    ("nvidia_a100_80", 80),
    ("h100-47", 47),
    ("a100l", 80),
    ("a100l.2g.20gb", 20),
    ("v100l", 32),
    ("tesla_v100S", 32),
    ("h100_64gb", 64),
    ("a100-40gb-512g", 40),
    ("a100-512g", 40),
    ("teslaV100", 16),
    ("GEFORCERTX2080TI", 11),
    ("QUADRORTX6000", 24),
    ("2080ti", 11),
    ("3090", 24),
    ("nvidia_geforce_gtx_3090", 24),
    ("rtx_6000_ada", 48),
    ("rtx6000ada", 48),
    ("rtx_pro_6000_blackwell", 96),
    ("l40s_46gb", 46),
    ("gpu_h100_4", 80),
    ("80gb", 80),
    # AMD and Intel: SlinkyProject/slurm-operator#57, https://docs.ray.io/en/latest/ray-core/accelerator-types.html
    ("amd_instinct_mi300x_oam", 192),
    ("amd_instinct_mi355_oam", 288),
    ("AMD-Instinct-MI250X", 64),
    ("mi250x-128gb", 64),
    ("mi300a", 128),
    ("gfx942", 128),
    ("gfx942-mi300x", 192),
    ("gfx950-mi355x", 288),
    ("gfx90a", 64),
    ("data_center_gpu_max_1550", 64),
    ("Intel-GPU-Max-1100", 48),
    ("A100-80G", 80),
    # Names that do not tell it: parts without a size, families, hosts
    ("a100l.3", 0),
    ("a100_mig", 0),
    ("a100_80gb_mig", 0),
    ("a100_mig40", 0),
    ("mig10", 0),
    ("mig48gb", 48),
    ("mig_24gb", 24),
    ("a100_3g", 0),
    ("mi300x_cpx", 0),
    ("mig", 0),
    ("tesla", 0),
    ("gpu", 0),
    ("gpu-512g", 0),
    ("a1000", 0),
    ("tpu", 0),
    ("cpu/Intel_Xeon_a100", 0),
    ("", 0),
]


def test_the_memory_of_a_gpu_follows_from_its_name() -> None:
    assert {name: memory_gib(name) for name, _ in NAMES} == dict(NAMES)
    for name, gib in NAMES:
        assert gpus.lookup(name).memory == gib * 1e9


SLICES = (
    "1g.10gb", "nvidia_a100-sxm4-80gb_mig_1g_10gb", "h100_7g.80gb", "a100_20g", "h100-47",
    "a100l.3", "mi300x_cpx", "mig", "mig_24gb", "mig48gb", "a100_mig40",
)  # fmt: skip


WHOLE = ("a100-40gb-512g", "h100-96", "gpu_h100_4", "gfx942-mi300x", "")


def test_parts_of_a_gpu_are_known_as_such() -> None:
    assert {name for name in (*SLICES, *WHOLE) if gpus.is_slice(name)} == {*SLICES}


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("a100", 80),  # sold with 40 and with 80
        ("tesla", 80),
        ("", 80),
        ("a100l.3", 80),
        ("a100_40gb", 40),
        ("h100", 80),
        ("h200", 141),  # there is no other
        ("rtx_3080", 10),  # and none of these has 80
        ("a100_1g.5gb", 5),
    ],
)
def test_what_the_user_sets_counts_where_the_name_leaves_it_open(name: str, gib: float) -> None:
    assert memory_gib(name, 80.0) == gib


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rtx_6000_ada", "NVIDIA RTX 6000 Ada Generation"),
        ("amd_instinct_mi300x_oam", "MI300X"),
        ("mi250x", "AMD-Instinct-MI250X"),
        ("h100-nvl-94gb", "nvidia_h100_80gb_hbm3"),
        ("a100_1g.10gb", "nvidia_a100-sxm4-80gb_mig_1g_10gb"),
    ],
)
def test_one_card_has_one_name(one: str, other: str) -> None:
    assert gpus.name(one) == gpus.name(other)
    assert gpus.asked_for(one, other)


def test_cards_that_are_alike_only_in_name_differ() -> None:
    for one, other in (("gb200", "b200"), ("l4", "l40"), ("rtx_6000", "rtx_6000_ada")):
        assert not gpus.asked_for(one, other)


@given(st.text(max_size=40))
def test_any_text_is_read(text: str) -> None:
    assert 0 <= read(text).gib < 1000


@given(st.sampled_from([name for name, gib in NAMES if gib]), st.integers(300, 9999))
def test_a_hosts_memory_in_a_name_changes_nothing(name: str, host: int) -> None:
    assert memory_gib(f"{name}_{host}gb") == memory_gib(name)
