"""Where a job's Python comes from: the way from a lock file to the interpreter of a run's processes.

1. *Which stack.* A strategy names a stack. `stacks` finds its lock: the project's own (`locks`), or one that the login
   node records (`recorded`), because the user adds packages, or the cluster has wheels of its own. `software` tells the
   planner what is known of the jobs' torch by then.
2. *What jobs are told.* `login_node.environment_of` describes the environment, as plain data in `run.json`.
3. *What the login node makes.* `login_node.prepare`: the wheels for nodes (`wheelhouse`), an environment above the
   driver's own (`overlay`), or a conda environment (`conda`). Packages without wheels are built (`built`, by `recipes`
   and `nvcc`), and kept for this user (`kept`). `pip` looks for wheels and fetches them, because the user's
   configuration is pip's.
4. *What a node has.* `node.prepare` installs the wheels on the node's own disk (`node_folder`), with uv (`installer`).
   `versioned` decides when an environment is whole, and when its old version may go.
5. *What a rank runs.* `node.interpreter` gives the words that start its Python. `task_python` gives the Python in which
   the login node looks at a task.
"""
