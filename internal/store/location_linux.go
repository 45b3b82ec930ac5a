package store

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const fuseMagic = 0x65735546

// remoteMagics are statfs types of network and cluster file systems, and of
// folders that a hypervisor shares into a VM.
var remoteMagics = map[uint32]string{
	0x6969:     "nfs",
	0x517b:     "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb3",
	0x01021997: "9p",
	0x5346414f: "afs",
	0x6b414653: "kafs",
	0x73757245: "coda",
	0x564c:     "ncp",
	0x00c36400: "ceph",
	0x0bd00bd0: "lustre",
	0x47504653: "gpfs",
	0x7461636f: "ocfs2",
	0x01161970: "gfs2",
	0x786f4256: "vboxsf",
	0xbacbacbc: "vmhgfs",
}

// remoteFuse are the mountinfo types of FUSE file systems that reach over a
// network or out of a VM. Other FUSE file systems are local and allowed.
var remoteFuse = []string{
	"sshfs", "rclone", "s3fs", "glusterfs", "ceph-fuse", "davfs", "gvfsd-fuse", "curlftpfs", "smbnetfs",
	"gcsfuse", "goofys", "mount-s3", "blobfuse", "blobfuse2", "juicefs", "JuiceFS", "seaweedfs", "vmhgfs-fuse",
	"httpfs", "afp", "portal", "grpcfuse", "osxfs", "prl_fsd", "moosefs", "mfs", "hdfs", "fuse_dfs",
}

func probeFS(path string) (string, bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", false, err
	}
	magic := uint32(st.Type)
	if name := remoteMagics[magic]; name != "" {
		return name, true, nil
	}
	if magic != fuseMagic {
		return fmt.Sprintf("0x%x", magic), false, nil
	}
	var sb unix.Stat_t
	if err := unix.Stat(path, &sb); err != nil {
		return "", false, err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "fuse", false, nil // no /proc: nothing tells which one, and most are local
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(uint64(sb.Dev)), unix.Minor(uint64(sb.Dev)))
	fsType, source := mountType(string(info), dev)
	return fsType, isRemoteFuse(fsType, source), nil
}

// mountType finds the type and source of the mount of device dev ("major:minor")
// in the text of /proc/self/mountinfo.
func mountType(info, dev string) (fsType, source string) {
	for line := range strings.Lines(info) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if ok && len(f) > 2 && f[2] == dev && len(g) > 1 {
			return g[0], unescapeMount(g[1])
		}
	}
	return "fuse", ""
}

func isRemoteFuse(fsType, source string) bool {
	if fsType == "virtiofs" {
		return true
	}
	sub, ok := strings.CutPrefix(fsType, "fuse.")
	if !ok {
		// A FUSE file system without a subtype tells itself by its source only:
		// user@host:path or //host/share is somewhere else.
		return fsType == "fuse" && (strings.Contains(source, ":") || strings.HasPrefix(source, "//"))
	}
	for _, r := range remoteFuse {
		if sub == r {
			return true
		}
	}
	return false
}

// unescapeMount undoes mountinfo's octal escapes (\040 is a space).
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
