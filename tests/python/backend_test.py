"""The backend "lockstep" as torch.distributed sees it, in ranks of their own."""

import job

if __name__ == "__main__":
    job.main("backend_collectives", "backend_messages", "backend_groups", "backend_errors",
             "backend_reconfigure")
