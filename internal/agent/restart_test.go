package agent_test

func agentProcess() int { return 1 }
