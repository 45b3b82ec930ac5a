package mcpserver

import (
	"fmt"
	"slices"
	"strings"

	"maps"

	"sandboxforge/internal/sandbox"
)

// The texts of results: short, with what a reader without structured content
// needs to go on.

const maxStreamText = 1500

func textCreate(r *sandbox.CreateInstanceResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Instance %s is %s on %s (%s start, accelerator %s); it is destroyed automatically at %s.", r.InstanceID, r.Status, r.Backend, r.StartKind, r.Accelerator, r.ExpiresAt)
	if r.Bootstrap != nil {
		b.WriteString("\n" + textPrepare(r.Bootstrap))
	}
	warnings(&b, r.Warnings)
	return b.String()
}

func textPrepare(r *sandbox.PrepareWorkspaceResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Workspace of %s: Docker ready: %t; directory in the VM: %s.", r.InstanceID, r.RuntimeReady, r.WorkspacePaths.Preferred)
	if r.Sync != nil {
		fmt.Fprintf(&b, " Synced %d file(s), %d unchanged.", r.Sync.FilesSent, r.Sync.FilesUnchanged)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Services)) {
		s := r.Services[name]
		fmt.Fprintf(&b, " %s %s at %s:%d.", name, s.Status, s.Host, s.Port)
	}
	warnings(&b, r.Warnings)
	return b.String()
}

func warnings(b *strings.Builder, list []string) {
	for _, w := range list {
		b.WriteString("\nWarning: " + w)
	}
}

func textList(r *sandbox.ListInstancesResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d instance(s); backend %s available: %t.", len(r.Instances), r.Backend, r.BackendAvailable)
	for _, i := range r.Instances {
		fmt.Fprintf(&b, "\n%s %s", i.InstanceID, i.Status)
		if i.EndReason == "" {
			fmt.Fprintf(&b, " until %s", i.ExpiresAt)
		}
		fmt.Fprintf(&b, ", workspace %s", i.WorkspaceRoot)
	}
	if r.BackendError != "" {
		b.WriteString("\nBackend error: " + r.BackendError)
	}
	if r.ReconciliationError != "" {
		b.WriteString("\nReconciliation error: " + r.ReconciliationError)
	}
	return b.String()
}

func textExtend(r *sandbox.ExtendInstanceTTLResult) string {
	return fmt.Sprintf("Instance %s now ends at %s (%.4g minute(s) added).", r.InstanceID, r.ExpiresAt, r.TTLExtendedMinutes)
}

func textDestroy(r *sandbox.DestroyInstanceResult) string {
	return fmt.Sprintf("Instance %s is destroyed; its VM is gone.", r.InstanceID)
}

func textValidate(r *sandbox.ValidateWorkspaceConfigResult) string {
	var b strings.Builder
	verdict := "valid"
	if !r.Valid {
		verdict = "not valid"
	}
	fmt.Fprintf(&b, "The configuration of %s is %s (made of %s).", r.WorkspaceRoot, verdict, strings.Join(r.Sources, ", "))
	for _, d := range r.Diagnostics {
		fmt.Fprintf(&b, "\n%s: ", d.Severity)
		if d.File != "" {
			b.WriteString(d.File)
			if d.Line > 0 { // of the whole file otherwise
				fmt.Fprintf(&b, ":%d:%d", d.Line, d.Column)
			}
			b.WriteString(": ")
		}
		if d.Key != "" {
			b.WriteString(d.Key + ": ")
		}
		b.WriteString(d.Message)
		if d.Allowed != "" {
			b.WriteString(" (allowed: " + d.Allowed + ")")
		}
	}
	return b.String()
}

func textRun(r *sandbox.RunCommandResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Exit code %d after %d ms (task %s).", r.ExitCode, r.DurationMS, r.TaskID)
	if r.Signal != "" {
		b.WriteString(" Killed by " + r.Signal + ".")
	}
	stream(&b, "stdout", r.Stdout, r.StdoutTruncated, r.StdoutBytes)
	stream(&b, "stderr", r.Stderr, r.StderrTruncated, r.StderrBytes)
	return b.String()
}

func stream(b *strings.Builder, name, text string, truncated bool, total int64) {
	if text == "" && total == 0 {
		return
	}
	fmt.Fprintf(b, "\n--- %s", name)
	if truncated || len(text) > maxStreamText {
		fmt.Fprintf(b, " (%d bytes in all; the rest is in get_task_logs)", total)
	}
	b.WriteString(" ---\n" + middle(text, maxStreamText))
}

func textStart(r *sandbox.StartBackgroundTaskResult) string {
	return fmt.Sprintf("Task %s is %s in %s (pid %d). Follow it with get_task_status and get_task_logs.", r.TaskID, r.Status, r.InstanceID, r.PID)
}

func textTask(r *sandbox.Task) string {
	s := fmt.Sprintf("Task %s: %s", r.TaskID, r.Status)
	if r.ExitCode != nil {
		s += fmt.Sprintf(", exit code %d", *r.ExitCode)
	}
	if r.Signal != nil {
		s += ", signal " + *r.Signal
	}
	if r.ErrorMessage != nil {
		s += ": " + *r.ErrorMessage
	}
	return s + "."
}

func textLogs(r *sandbox.GetTaskLogsResult) string {
	s := fmt.Sprintf("Task %s: %s; next offset %d of %d bytes.", r.TaskID, r.Status, r.NextOffset, r.TotalBytes)
	if r.Stream == "both" {
		s = fmt.Sprintf("Task %s: %s; %d bytes in both streams.", r.TaskID, r.Status, r.TotalBytes)
	}
	if r.DroppedBytes > 0 {
		s += fmt.Sprintf(" %d bytes were dropped.", r.DroppedBytes)
	}
	return s + "\n" + middle(r.Logs, 2*maxStreamText)
}

func textStop(r *sandbox.StopTaskResult) string {
	s := fmt.Sprintf("Task %s: %s", r.TaskID, r.Status)
	if r.ExitCode != nil {
		s += fmt.Sprintf(", exit code %d", *r.ExitCode)
	}
	if r.Signal != nil {
		s += ", signal " + *r.Signal
	}
	return s + "."
}

func textTasks(r *sandbox.ListTasksResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d task(s).", len(r.Tasks))
	for _, t := range r.Tasks {
		fmt.Fprintf(&b, "\n%s %s in %s: %s", t.TaskID, t.Status, t.InstanceID, middle(t.Command, 120))
	}
	return b.String()
}

func textCopyTo(r *sandbox.CopyResult) string {
	return fmt.Sprintf("Copied %d file(s), %d bytes from %s to %s in the VM.", r.Files, r.Bytes, r.LocalPath, r.RemotePath) + refusals(r.Refused)
}

func textCopyFrom(r *sandbox.CopyResult) string {
	return fmt.Sprintf("Copied %d file(s), %d bytes from %s in the VM to %s.", r.Files, r.Bytes, r.RemotePath, r.LocalPath) + refusals(r.Refused)
}

func refusals(list []sandbox.Refusal) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "\nLeft alone: %s: %s", r.Path, r.Reason)
	}
	return b.String()
}

func conflicts(list []sandbox.Conflict) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "\nConflict: %s (host %s, guest %s)", c.Path, c.Host, c.Guest)
	}
	return b.String()
}

func textSyncTo(r *sandbox.SyncToInstanceResult) string {
	return fmt.Sprintf("Synced %s to %s in the VM: %d file(s) sent, %d unchanged, %d deleted; status %s.", r.LocalPath, r.RemotePath, r.FilesSent, r.FilesUnchanged, r.FilesDeleted, r.Status) +
		conflicts(r.Conflicts) + refusals(r.Skipped)
}

func textSyncFrom(r *sandbox.SyncFromInstanceResult) string {
	s := fmt.Sprintf("Synced %s of the VM to %s: %d created, %d updated, %d deleted; status %s.", r.RemotePath, r.LocalPath, len(r.Created), len(r.Updated), len(r.Deleted), r.Status)
	if r.DryRun {
		s = fmt.Sprintf("Dry run, nothing was changed. A sync of %s of the VM to %s would create %d, update %d and delete %d.", r.RemotePath, r.LocalPath, len(r.Created), len(r.Updated), len(r.Deleted))
	}
	return s + paths("Create", r.Created) + paths("Update", r.Updated) + paths("Delete", r.Deleted) +
		conflicts(r.Conflicts) + refusals(r.Refused) + refusals(r.Failed)
}

// paths names the first of a list: what a dry run would change is what its
// caller has to judge.
func paths(what string, list []string) string {
	const most = 20
	switch {
	case len(list) == 0:
		return ""
	case len(list) > most:
		return fmt.Sprintf("\n%s: %s and %d more", what, strings.Join(list[:most], ", "), len(list)-most)
	}
	return fmt.Sprintf("\n%s: %s", what, strings.Join(list, ", "))
}

func textCollect(r *sandbox.CollectArtifactsResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Collected %d file(s) in %s; manifest %s.", len(r.Artifacts), r.LocalDest, r.ManifestPath)
	for _, a := range r.Artifacts {
		fmt.Fprintf(&b, "\n%s (%d bytes, sha256 %s)", a.LocalPath, a.Bytes, a.SHA256)
	}
	for _, f := range r.Failed {
		fmt.Fprintf(&b, "\nNot collected: %s: %s", f.RemotePath, f.Reason)
	}
	return b.String()
}
