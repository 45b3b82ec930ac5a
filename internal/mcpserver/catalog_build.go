package mcpserver

// catalogBuild are the tools that build images in a VM and judge them.
func catalogBuild() []*tool {
	return []*tool{
		row(spec{
			Name:  "docker_build",
			Title: "Build an image in a VM",
			Description: "Builds a container image inside the VM from a directory of its workspace, or answers at once with the image that an earlier call made of exactly the same (cache_hit=true): context after .dockerignore, Dockerfile, target, build_args and the base images that the VM has. " +
				"A changed file, target or argument is always built. What a build fetches from the network is not compared: no_cache=true builds anew, and an image older than build.staleness_detection.max_age_threshold (24 h) is not reused. " +
				"With a .git in the VM's workspace (sync.include_git), uncommitted changes and another commit are reasons to build too; the build.* configuration says how strict that is. " +
				"An image from elsewhere that already has the name image_tag is reused only if its labels prove the same content (build.prebuilt.validation). PREBUILT_IMAGE_INVALID and IMAGE_NOT_FOUND come only where the configuration says fail. " +
				"cached_image_tag is a second name that stays with this state of the workspace. Files that changed on the host must be synced first (sync_workspace_to_instance). " +
				"A failed build is DOCKER_COMMAND_FAILED with its output in details (INSUFFICIENT_DISK where the VM's disk is full). Cancelling the call stops the build. Reports the build's steps as progress." + needsDocker,
			hints: hints{idempotent: true, openWorld: true},
			rules: rules{
				"instance_id": instanceID, "context_path": path, "image_tag": imageName, "dockerfile": path, "no_cache": no,
				"target":          {minLen: 1, maxLen: 128, pattern: `^[A-Za-z0-9][A-Za-z0-9_.-]*$`},
				"timeout_seconds": {min: num(0.1), max: num(86400), def: 3600},
			},
		}, Service.DockerBuild, textDockerBuild),
		row(spec{
			Name:  "validate_image",
			Title: "Judge an image of a VM",
			Description: "Says whether an image in the VM stands for the workspace as it is there now, by the labels that docker_build writes: valid, reasons (image_missing, git_commit_mismatch, git_commit_missing_in_image_labels, dependencies_changed, dependencies_hash_missing_in_image_labels, image_too_old, workspace_has_uncommitted_changes, dockerfile_changed, content_changed, not_proven_by_labels: the labels come from an image that this one was made of) and a recommendation: reuse, warn, rebuild, build (there is none) or fail, as the build.* configuration has it. " +
				"checks replaces what the configuration compares. expected_image_tag is the name that docker_build would keep an image of this state under. It changes nothing; docker_build judges by itself, so calling this first is not needed." + needsDocker,
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{
				"instance_id": instanceID, "image_name": imageName, "workspace_root": path, "context_path": path, "dockerfile": path,
				"checks.max_age_hours": {min: num(0), max: num(87600)},
			},
		}, Service.ValidateImage, textValidateImage),
	}
}
