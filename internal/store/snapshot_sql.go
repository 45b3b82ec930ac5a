package store

import "time"

const snapshotColumns = `snapshot_id, kind, status, generation, name, description, instance_id, parent_snapshot, backend, dir,
	owner_session, holder_session, holder_pid, holder_boot, holder_start, created_at, request_id, reserved_bytes, memory_bytes,
	disk_bytes, pause_us, running_tasks, profile_name, workspace_root, workspace_id, vm_memory_mib, vm_disk_bytes, vm_cpus,
	accelerator, runtime_name, runtime_ready, docker_command, remote_path, config, spec, connection`

func scanSnapshot(row scanner) (Snapshot, error) {
	var s Snapshot
	var pause int64
	err := row.Scan(&s.SnapshotID, &s.Kind, &s.Status, &s.Generation, &s.Name, &s.Description, &s.InstanceID, &s.ParentSnapshot,
		&s.Backend, &s.Dir, &s.OwnerSession, &s.Holder.Session, &s.Holder.PID, &s.Holder.Boot, &s.Holder.Start,
		unstamp{&s.CreatedAt}, &s.RequestID, &s.ReservedBytes, &s.MemoryBytes, &s.DiskBytes, &pause, &s.RunningTasks,
		&s.ProfileName, &s.WorkspaceRoot, &s.WorkspaceID, &s.VMMemoryMiB, &s.VMDiskBytes, &s.VMCPUs, &s.Accelerator,
		&s.RuntimeName, &s.RuntimeReady, &s.DockerCommand, &s.RemotePath, untext{&s.Config}, untext{&s.Spec}, untext{&s.Connection})
	s.Pause = time.Duration(pause) * time.Microsecond
	return s, err
}

const sqlSnapshotByID = `SELECT ` + snapshotColumns + ` FROM snapshots WHERE snapshot_id = ?`

// 1 source or empty.
const sqlSnapshots = `SELECT ` + snapshotColumns + ` FROM snapshots WHERE (?1 = '' OR instance_id = ?1)
	ORDER BY created_at DESC, rowid DESC`

const sqlInsertSnapshot = `INSERT INTO snapshots (snapshot_id, kind, status, generation, name, description, instance_id,
	parent_snapshot, backend, dir, owner_session, holder_session, holder_pid, holder_boot, holder_start, created_at,
	reserved_bytes, running_tasks, profile_name, workspace_root, workspace_id, vm_memory_mib, vm_disk_bytes, vm_cpus, accelerator,
	runtime_name, runtime_ready, docker_command, remote_path, request_id, config, spec, connection)
	VALUES (?, ?, 'creating', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	RETURNING ` + snapshotColumns

const sqlMoveSnapshot = `UPDATE snapshots SET status = ?3, generation = generation + 1,
	holder_session = ?4, holder_pid = ?5, holder_boot = ?6, holder_start = ?7,
	pause_us = ?8, memory_bytes = ?9, disk_bytes = ?10, accelerator = ?11
	WHERE snapshot_id = ?1 AND generation = ?2 RETURNING ` + snapshotColumns

const sqlDeleteSnapshot = `DELETE FROM snapshots WHERE snapshot_id = ?`

const sqlRunningTasks = `SELECT count(*) FROM tasks WHERE instance_id = ? AND status = 'running'`
