package buildcache

// The labels of built images.
const (
	LabelCommit       = "git.commit"
	LabelBranch       = "git.branch"
	LabelTime         = "build.timestamp"
	LabelDependencies = "build.dependencies.hash"
	LabelContent      = "build.content.hash"
	LabelDockerfile   = "build.dockerfile.hash"
	LabelRevision     = "org.opencontainers.image.revision"
	LabelCreated      = "org.opencontainers.image.created"
	// LabelKey is the build's key. An image that has it was made here, or from
	// one that was: labels are inherited.
	LabelKey    = "sandboxforge.build.key"
	LabelTarget = "sandboxforge.build.target"
	LabelArgs   = "sandboxforge.build.args"
)

// Labels is what a build of a state is labelled with. Without a key nobody knows
// what the image was really made of, and it says nothing that could prove it.
func Labels(s State, key, target string, args map[string]string) map[string]string {
	l := map[string]string{
		LabelTime: s.Timestamp(), LabelCreated: s.Timestamp(), LabelTarget: target, LabelArgs: ArgsHash(args),
	}
	if key != "" {
		l[LabelKey] = key
		l[LabelCommit], l[LabelBranch], l[LabelRevision] = s.Commit, s.Branch, s.Commit
		l[LabelDependencies], l[LabelContent], l[LabelDockerfile] = s.Dependencies, s.Content, s.Dockerfile
	}
	return filled(l)
}
