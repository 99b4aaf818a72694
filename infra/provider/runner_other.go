//go:build unix && !linux

package provider

import "syscall"

func groupOfItsOwn() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// confineThread has nothing that other systems would share.
func confineThread() {}

// awaitExit leaves the waiting to Wait: then, for a moment, the group is without its leader.
func awaitExit(int) (zombie bool) { return false }
