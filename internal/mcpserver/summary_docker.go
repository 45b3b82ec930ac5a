package mcpserver

import (
	"fmt"
	"strings"

	"sandboxforge/internal/sandbox"
)

func textDockerRun(r *sandbox.DockerRunResult) string {
	var b strings.Builder
	if r.Container == "" {
		fmt.Fprintf(&b, "The container ended with exit code %d after %d ms and was removed.", r.ExitCode, r.DurationMS)
	} else {
		fmt.Fprintf(&b, "Container %s: exit code %d.", r.Container, r.ExitCode)
	}
	streams(&b, r.CommandResult)
	return b.String()
}

func textDockerExec(r *sandbox.DockerExecResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Exit code %d in container %s after %d ms.", r.ExitCode, r.Container, r.DurationMS)
	streams(&b, r.CommandResult)
	return b.String()
}

func textDockerLogs(r *sandbox.DockerLogsResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Output of container %s.", r.Container)
	streams(&b, r.CommandResult)
	return b.String()
}

func textDockerCompose(r *sandbox.DockerComposeResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "docker compose %s in %s: exit code %d after %d ms.", r.Action, r.ProjectDir, r.ExitCode, r.DurationMS)
	if r.Bridge.Status == "connected" {
		fmt.Fprintf(&b, " %d of %d container(s) are on the network %s.", r.Bridge.ContainersConnected+r.Bridge.ContainersAlreadyConnected, r.Bridge.ContainersSeen, r.Bridge.Network)
	}
	streams(&b, r.CommandResult)
	return b.String()
}

func textDockerPS(r *sandbox.DockerPSResult) string {
	return fmt.Sprintf("%d container(s).\n", len(r.Containers)) + middle(r.Stdout, maxStreamText)
}

func textDockerImages(r *sandbox.DockerImagesResult) string {
	return fmt.Sprintf("%d image(s).\n", len(r.Images)) + middle(r.Stdout, maxStreamText)
}

func textDockerCleanup(r *sandbox.DockerCleanupResult) string {
	return fmt.Sprintf("Clean-up (%s) of instance %s freed %.1f MB.", r.Mode, r.InstanceID, float64(r.ReclaimedBytes)/1e6)
}

func streams(b *strings.Builder, r sandbox.CommandResult) {
	stream(b, "stdout", r.Stdout, r.StdoutTruncated, r.StdoutBytes)
	stream(b, "stderr", r.Stderr, r.StderrTruncated, r.StderrBytes)
}
