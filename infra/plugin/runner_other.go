//go:build unix && !linux

package plugin

import "syscall"

func ownProcessGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// confineThread does nothing: other systems have no common equivalent.
func confineThread() {}

// awaitExit leaves waiting to Wait. For a moment, the group then exists without its leader.
func awaitExit(int) (zombie bool) { return false }
