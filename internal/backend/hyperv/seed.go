package hyperv

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	diskfile "github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"golang.org/x/crypto/ssh"
)

// seed is what cloud-init in the guest is told.
type seed struct {
	instance string // cloud-init does its work once for each
	hostname string
	user     string
	userKey  ssh.PublicKey
	hostKey  []byte // private, PEM
	hostPub  ssh.PublicKey
	mac      string // with colons
}

// files are those of the NoCloud data source
// (cloud-init, reference/datasources/nocloud). They are YAML, of which JSON is
// a part, so that nothing needs quoting.
func (s seed) files() (map[string][]byte, error) {
	authorized := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.userKey)))
	hostPub := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.hostPub)))
	user := map[string]any{
		"users": []any{map[string]any{
			"name": s.user, "ssh_authorized_keys": []string{authorized}, "sudo": "ALL=(ALL) NOPASSWD:ALL", "shell": "/bin/bash", "lock_passwd": true,
		}},
		"ssh_pwauth": false, "disable_root": true,
		// One host key, which we know; those of the image go.
		"ssh_deletekeys":    true,
		"ssh_keys":          map[string]string{"ed25519_private": string(s.hostKey), "ed25519_public": hostPub},
		"preserve_hostname": false,
		"growpart":          map[string]any{"mode": "auto", "devices": []string{"/"}},
		"resize_rootfs":     true,
		"package_update":    false, "package_upgrade": false,
	}
	meta := map[string]any{"instance-id": s.instance, "local-hostname": s.hostname}
	network := map[string]any{"version": 2, "ethernets": map[string]any{"eth0": map[string]any{
		// The address goes by the card: guests of one base may share a machine id.
		"match": map[string]string{"macaddress": s.mac}, "dhcp4": true, "dhcp-identifier": "mac",
	}}}
	out := map[string][]byte{}
	for name, v := range map[string]any{"user-data": user, "meta-data": meta, "network-config": network} {
		raw, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return nil, err
		}
		if name == "user-data" {
			raw = append([]byte("#cloud-config\n"), raw...)
		}
		out[name] = append(raw, '\n')
	}
	return out, nil
}

// write makes the ISO, with the label by which cloud-init finds it. Rock Ridge
// keeps the names in lower case.
func (s seed) write(path string) (err error) {
	files, err := s.files()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".seed-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeTree(work)) }()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(work, name), data, 0o600); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	iso, err := iso9660.Create(diskfile.New(f, false), 0, 0, 2048, work)
	if err != nil {
		return fmt.Errorf("the seed: %w", err)
	}
	if err := iso.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: "cidata"}); err != nil {
		return fmt.Errorf("the seed: %w", err)
	}
	// Whole sectors: what is not one could not be read from a drive.
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Truncate((st.Size() + isoUnit - 1) / isoUnit * isoUnit); err != nil {
		return err
	}
	return f.Sync()
}

// isoUnit is what the ISO's size is a multiple of: sixteen sectors.
const isoUnit = 16 * 2048

// colons writes 0215AABBCCDD as 02:15:aa:bb:cc:dd, dashes as 02-15-AA-….
func colons(mac string) string { return strings.ToLower(separated(mac, ":")) }
func dashes(mac string) string { return separated(mac, "-") }

func separated(mac, by string) string {
	var parts []string
	for i := 0; i+2 <= len(mac); i += 2 {
		parts = append(parts, mac[i:i+2])
	}
	return strings.Join(parts, by)
}
