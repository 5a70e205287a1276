"""Recorded output of nvidia-smi, df, ps and others on many kinds of machine."""

from __future__ import annotations

FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu",
    "temperature.gpu", "power.draw", "power.limit", "driver_version", "compute_cap",
)  # fmt: skip

# name -> (--query-gpu with FIELDS, expected: kind, bytes, bytes used, utilization 0-1, C, W, W limit, capability)
MIB = 1 << 20
GPUS = {
    "H100": (
        "0, GPU-6f0a4c9e, NVIDIA H100 80GB HBM3, 81559, 79483, 98, 61, 612.37, 700.00, 550.54.15, 9.0\n"
        "1, GPU-7f0a4c9e, NVIDIA H100 80GB HBM3, 81559, 4, 0, 31, 69.12, 700.00, 550.54.15, 9.0\n",
        [
            ("NVIDIA H100 80GB HBM3", 81559 * MIB, 79483 * MIB, 0.98, 61.0, 612.37, 700.0, "9.0"),
            ("NVIDIA H100 80GB HBM3", 81559 * MIB, 4 * MIB, 0.0, 31.0, 69.12, 700.0, "9.0"),
        ],
    ),
    "units in spite of nounits": (
        "0, GPU-1, Tesla V100-SXM2-16GB, 16160 MiB, 0 MiB, 7 %, 35, 41.20 W, 300.00 W, 535.183.01, 7.0\n",
        [("Tesla V100-SXM2-16GB", 16160 * MIB, 0, 0.07, 35.0, 41.2, 300.0, "7.0")],
    ),
    "unified memory": (
        "0, GPU-2, NVIDIA GB10, [N/A], [N/A], 3, 44, 11.02, [N/A], 580.95.05, 12.1\n",
        [("NVIDIA GB10", None, None, 0.03, 44.0, 11.02, None, "12.1")],
    ),
    "MIG": (
        "0, GPU-3, NVIDIA A100-SXM4-80GB, 81920, 45, [N/A], 33, 62.91, 400.00, 525.147.05, 8.0\n",
        [("NVIDIA A100-SXM4-80GB", 81920 * MIB, 45 * MIB, None, 33.0, 62.91, 400.0, "8.0")],
    ),
    "broken sensors": (
        "0, GPU-4, A, [Not Supported], [Unknown Error], ERR!, [GPU requires reset], [N/A], [N/A], 470.256.02, [N/A]\n",
        [("A", None, None, None, None, None, None, "")],
    ),
    "a warning between, and a row cut off": (
        "0, GPU-5, A, 1, 1, 1, 1, 1, 1, 1.1, 1.0\nWARNING: infoROM is corrupted at gpu 0000:3B:00.0\n1, GPU-6, A, 1",
        [("A", MIB, MIB, 0.01, 1.0, 1.0, 1.0, "1.0")],
    ),
    "Windows ends of line": (
        "0, GPU-7, NVIDIA L4, 23034, 1, 0, 40, 16.5, 72.00, 551.23, 8.9\r\n",
        [("NVIDIA L4", 23034 * MIB, MIB, 0.0, 40.0, 16.5, 72.0, "8.9")],
    ),
    "no devices": ("No devices were found\n", []),
    "no driver": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n",
        [],
    ),
    "mismatch": ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", []),
    "nothing": ("", []),
}

SMI_HEADERS = {
    "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |": "12.4",
    "| NVIDIA-SMI 470.256.02   Driver Version: 470.256.02   CUDA Version: 11.4     |": "11.4",
    "| NVIDIA-SMI 580.65.06     KMD Version: 580.65.06     CUDA UMD Version: 13.0     |": "13.0",
    "| NVIDIA-SMI 535.1    Driver Version: 535.1    CUDA Version: N/A |": "",
    "NVIDIA-SMI has failed": "",
    "": "",
}

APPS = (
    "GPU-1, 4242, 1024, python\nGPU-1, 17, [N/A], /opt/conda/bin/python3.11, with a comma\n"
    "GPU-0, [N/A], [N/A], [Not Found]\nGPU-0, 4242, 512, python\n"
    "No running processes found\nGPU-0, 99, 2048 MiB, [Insufficient Permissions]\n"
)

OS_RELEASES = {
    'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\nID=ubuntu\n': "Ubuntu 22.04.4 LTS",
    "ID=alpine\nPRETTY_NAME='Alpine Linux v3.19'\n": "Alpine Linux v3.19",
    "PRETTY_NAME=Debian\n": "Debian",
    "NAME=nothing\n": "",
    "": "",
}
LIBCS = {
    "glibc 2.35": "2.35",
    "ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35": "2.35",
    "ldd (GNU libc) 2.17": "2.17",
    "ldd (Debian GLIBC 2.36-9+deb12u10) 2.36": "2.36",
    "musl libc (x86_64)": "",
    "sh: getconf: not found": "",
    "": "",
}
CPUS = {
    "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Platinum 8481C\n": "Intel(R) Xeon(R) Platinum 8481C",
    "processor\t: 0\nModel\t\t: Raspberry Pi 4 Model B Rev 1.1\n": "Raspberry Pi 4 Model B Rev 1.1",
    "processor\t: 0\nCPU implementer\t: 0x41\n": "",
    "": "",
}
DF = """\
Filesystem              1024-blocks      Used  Available Capacity Mounted on
udev                       98000000         0   98000000       0% /dev
tmpfs                      19700000      2100   19697900       1% /run
/dev/nvme0n1p1            203056560  84120304  118919872      42% /
/dev/loop3                    65536     65536          0     100% /snap/core20/2318
/dev/nvme0n1p15              106858      6186     100672       6% /boot/efi
/dev/md0                 7441000000 120000000 7321000000       2% /mnt/local disk
/dev/md0                 7441000000 120000000 7321000000       2% /var/lib/docker
10.0.0.2:/export home   99999999999 999999999 98999999999      2% /home
overlay                   203056560  84120304  118919872      42% /var/lib/docker/overlay2/x/merged
df: /mnt/stale: Stale file handle
/dev/sdb1                   cut
"""
DF_READ = [
    ("/", "/dev/nvme0n1p1", 203056560 * 1024, 118919872 * 1024),
    ("/mnt/local disk", "/dev/md0", 7441000000 * 1024, 7321000000 * 1024),
    ("/home", "10.0.0.2:/export home", 99999999999 * 1024, 98999999999 * 1024),
]
INFINIBAND = """\
mlx5_0|1|4: ACTIVE|400 Gb/sec (4X NDR)|InfiniBand
mlx5_1|1|1: DOWN|10 Gb/sec (4X SDR)|InfiniBand
mlx5_bond_0|1|4: ACTIVE|100 Gb/sec (4X EDR)|Ethernet
irdma0|1|2: INIT||Ethernet
cat: state: Invalid argument
mlx5_2|1|4: ACT
"""
INFINIBAND_READ = [
    ("mlx5_0", 1, "active", 400.0, "InfiniBand"),
    ("mlx5_1", 1, "down", 10.0, "InfiniBand"),
    ("mlx5_bond_0", 1, "active", 100.0, "Ethernet"),
    ("irdma0", 1, "init", None, "Ethernet"),
]
PS = """\
   4242 alice       01:02:03 /opt/conda/bin/python -m train --token hf_secret lr=3e-4
     17 bob      2-00:00:09 python3 train.py WANDB_API_KEY=secret
      1 root     init
     18 bob      00:05 python3 -m midstream_engine.train --config_path /data/root/runs/nano/run.yaml
error: garbage
"""
PS_READ = [
    (4242, "alice", "python -m train", 996277.0, 1 << 30, ""),
    (17, "bob", "python3 train.py", 827191.0, None, ""),
    (1, "root", "init", None, None, ""),
    (18, "bob", "python3 -m midstream_engine.train", 999995.0, None, "nano"),
]  # at 1,000,000 s, with a GiB of process 4242
