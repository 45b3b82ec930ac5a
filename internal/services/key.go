package services

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Key names everything that decides what a set of services is made to be,
// except the ids of their images: VMs in which services of one key run can
// stand for each other once each has passwords of its own.
func Key(list []Service) string {
	type entry struct{ Container, Image, Spec string }
	var all []entry
	for _, s := range list {
		all = append(all, entry{s.Container, s.Image, s.spec("")})
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic("services: JSON of texts: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Names lists what the services are called.
func Names(list []Service) []string {
	names := []string{}
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}
