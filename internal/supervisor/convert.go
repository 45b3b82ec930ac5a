package supervisor

import (
	"time"

	"sandboxforge/internal/supervisor/supervisorv1"
)

var stateToProto = map[State]supervisorv1.State{
	StateBooting:  supervisorv1.State_STATE_BOOTING,
	StateReady:    supervisorv1.State_STATE_READY,
	StateStopping: supervisorv1.State_STATE_STOPPING,
	StateEnded:    supervisorv1.State_STATE_ENDED,
}

func statusToProto(s Status) *supervisorv1.Status {
	p := &supervisorv1.Status{
		State: stateToProto[s.State], AgentConnected: s.AgentConnected, AgentVersion: s.AgentVersion,
		AgentConnections: s.AgentConnections, BootId: s.BootID, Accelerator: s.Accelerator,
		Pid: int64(s.PID), VmPid: int64(s.VMPID), StartedUnixNs: s.StartedAt.UnixNano(),
		DeadlineUnixNs: s.Deadline.UnixNano(), RemainingNs: int64(s.Remaining),
		BootAttempts: uint32(s.BootAttempts), BootAttemptsMax: uint32(s.BootAttemptsMax), TimingsMs: s.Timings,
		Stage: s.Stage, Message: s.Message, LastConsole: s.LastConsole, EndReason: s.EndReason, EndDetail: s.EndDetail,
	}
	if !s.ReadyAt.IsZero() {
		p.ReadyUnixNs = s.ReadyAt.UnixNano()
	}
	return p
}

func statusFromProto(p *supervisorv1.Status) Status {
	s := Status{
		AgentConnected: p.GetAgentConnected(), AgentVersion: p.GetAgentVersion(),
		AgentConnections: p.GetAgentConnections(), BootID: p.GetBootId(), Accelerator: p.GetAccelerator(),
		PID: int(p.GetPid()), VMPID: int(p.GetVmPid()), StartedAt: unixNs(p.GetStartedUnixNs()), ReadyAt: unixNs(p.GetReadyUnixNs()),
		Deadline: unixNs(p.GetDeadlineUnixNs()), Remaining: time.Duration(p.GetRemainingNs()),
		BootAttempts: int(p.GetBootAttempts()), BootAttemptsMax: int(p.GetBootAttemptsMax()), Timings: p.GetTimingsMs(),
		Stage: p.GetStage(), Message: p.GetMessage(), LastConsole: p.GetLastConsole(),
		EndReason: p.GetEndReason(), EndDetail: p.GetEndDetail(),
	}
	for k, v := range stateToProto {
		if v == p.GetState() {
			s.State = k
		}
	}
	return s
}
