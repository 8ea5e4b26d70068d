"""A cluster of Ray with two nodes on this machine: says where it is and which process is a node; it ends with stdin."""

import json
import sys

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    raylet = cluster.add_node(**NODE).all_processes["raylet"][0].process.pid
    print(json.dumps({"address": cluster.address, "raylet": raylet}), flush=True)
    sys.stdin.read()
    cluster.shutdown()
