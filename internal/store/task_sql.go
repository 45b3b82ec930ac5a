package store

import "database/sql"

const taskColumns = `task_id, instance_id, kind, status, command, cwd, user, created_at, started_at, finished_at, pid,
	exit_code, signal, error_message, outcome_unknown, log_path, stdout_bytes, stderr_bytes, request_id, owner_session,
	holder_session, holder_pid, holder_boot, holder_start, stop_requested_at,
	EXISTS (SELECT 1 FROM task_tails WHERE task_tails.task_id = tasks.task_id)`

func scanTask(row scanner) (Task, error) {
	var t Task
	var exit sql.Null[int]
	err := row.Scan(&t.TaskID, &t.InstanceID, &t.Kind, &t.Status, &t.Command, &t.Cwd, &t.User,
		unstamp{&t.CreatedAt}, unstamp{&t.StartedAt}, unstamp{&t.FinishedAt}, &t.PID,
		&exit, &t.Signal, &t.ErrorMessage, &t.OutcomeUnknown, &t.LogPath, &t.StdoutBytes, &t.StderrBytes, &t.RequestID, &t.OwnerSession,
		&t.Holder.Session, &t.Holder.PID, &t.Holder.Boot, &t.Holder.Start, unstamp{&t.StopRequestedAt}, &t.HasTails)
	if exit.Valid {
		t.ExitCode = &exit.V
	}
	return t, err
}

const sqlInsertTask = `INSERT INTO tasks (task_id, instance_id, kind, status, command, cwd, user, created_at, request_id,
	owner_session, holder_session, holder_pid, holder_boot, holder_start)
	VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING ` + taskColumns

const sqlTaskStarted = `UPDATE tasks SET pid = ?2, started_at = ?3, log_path = ?4
	WHERE task_id = ?1 AND status = 'running' RETURNING ` + taskColumns

const sqlRequestStop = `UPDATE tasks SET stop_requested_at = coalesce(stop_requested_at, ?2)
	WHERE task_id = ?1 AND status = 'running' RETURNING ` + taskColumns

const sqlWithdrawStop = `UPDATE tasks SET stop_requested_at = NULL WHERE task_id = ?1 AND status = 'running' RETURNING ` + taskColumns

const sqlFinishTask = `UPDATE tasks SET status = CASE WHEN stop_requested_at IS NULL THEN ?2 ELSE 'stopped' END, finished_at = ?3, exit_code = ?4, signal = ?5, error_message = ?6,
	outcome_unknown = ?7, stdout_bytes = max(stdout_bytes, ?8), stderr_bytes = max(stderr_bytes, ?9),
	started_at = coalesce(started_at, ?10), pid = CASE pid WHEN 0 THEN ?11 ELSE pid END,
	log_path = CASE log_path WHEN '' THEN ?12 ELSE log_path END
	WHERE task_id = ?1 AND status = 'running' RETURNING ` + taskColumns

const sqlEndTasks = `UPDATE tasks SET status = 'stopped', finished_at = ?2, error_message = ?3, outcome_unknown = 1
	WHERE instance_id = ?1 AND status = 'running' RETURNING ` + taskColumns

const sqlTaskTotals = `UPDATE tasks SET stdout_bytes = max(stdout_bytes, ?2), stderr_bytes = max(stderr_bytes, ?3) WHERE task_id = ?1`

const sqlPutTails = `INSERT INTO task_tails (task_id, saved_at, stdout, stderr) VALUES (?, ?, ?, ?)
	ON CONFLICT (task_id) DO UPDATE SET saved_at = excluded.saved_at, stdout = excluded.stdout, stderr = excluded.stderr`

const sqlTails = `SELECT stdout, stderr FROM task_tails WHERE task_id = ?`

const sqlTaskByID = `SELECT ` + taskColumns + ` FROM tasks WHERE task_id = ?`

// 1 instance or empty, 2 status or empty, 3 kind or empty, 4 limit.
const sqlTasks = `SELECT ` + taskColumns + ` FROM tasks
	WHERE (?1 = '' OR instance_id = ?1) AND (?2 = '' OR status = ?2) AND (?3 = '' OR kind = ?3)
	ORDER BY created_at DESC, rowid DESC LIMIT ?4`

// 1 budget in bytes: the newest tails that fit together stay.
const sqlPruneTails = `DELETE FROM task_tails WHERE task_id IN (SELECT task_id FROM (
	SELECT task_id, sum(length(stdout) + length(stderr)) OVER (ORDER BY saved_at DESC, rowid DESC) AS total FROM task_tails)
	WHERE total > ?1)`
