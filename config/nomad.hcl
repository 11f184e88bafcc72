# pwgrid on Nomad, one allocation on a client node: docs/fleet.md explains it. Change before you run it: the image, the
# number of workers, and what a node has of memory and cores.
#
#   nomad var put nomad/jobs/pwgrid token="$(openssl rand -hex 16)"
#   nomad job run nomad.hcl
job "pwgrid" {
  type = "service"

  # The new allocation first, and only when it is ready does the next node follow.
  update {
    max_parallel     = 1
    canary           = 1
    auto_promote     = true
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "5m"
  }

  # `nomad node drain` waits for the sessions of one node before it begins with the next.
  migrate {
    max_parallel = 1
    health_check = "checks"
  }

  group "pwgrid" {
    count = 2

    # A grid takes a whole host: it looks at the host's memory before it starts a worker.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    network {
      port "grid" {
        static = 8080
        to     = 8080
      }
    }

    service {
      name     = "pwgrid"
      port     = "grid"
      provider = "nomad"

      # Ready: each pool has a worker that takes clients.
      check {
        name     = "ready"
        type     = "http"
        path     = "/health/ready"
        interval = "5s"
        timeout  = "3s"
      }
    }

    task "grid" {
      driver = "docker"

      # New clients go elsewhere while it still serves. After that it gets SIGTERM, which drains.
      shutdown_delay = "10s"
      kill_signal    = "SIGTERM"
      # Longer than DRAIN_TIMEOUT. The client's max_kill_timeout (30 s by itself) must allow it.
      kill_timeout = "3600s"

      config {
        image    = "registry.example.org/pwgrid:1.0.0rc1" # built as docs/container.md says
        args     = ["serve"]
        ports    = ["grid"]
        shm_size = 1073741824
      }

      env {
        CHROMIUM_WORKERS       = "4"
        DRAIN_TIMEOUT          = "3500"
        PWGRID_ADVERTISED_HOST = "${attr.unique.network.ip-address}"
      }

      template {
        data        = "PWGRID_TOKEN={{ with nomadVar \"nomad/jobs/pwgrid\" }}{{ .token }}{{ end }}"
        destination = "secrets/token.env"
        env         = true
      }

      resources {
        cpu    = 8000
        memory = 8192
      }
    }
  }
}
