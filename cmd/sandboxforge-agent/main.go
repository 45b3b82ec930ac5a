// Command sandboxforge-agent is SandboxForge's part of a guest. Its work is in
// internal/agent; this is its command line:
//
//	agent serve     the service: the guest protocol on the virtio port
//	agent relay     stdin and stdout to a serve that listens on a socket (run over ssh)
//	agent init      process 1 of the minimal image, which runs and restarts serve
//	agent shim      the parent of one process (started by serve)
//	agent version
package main
