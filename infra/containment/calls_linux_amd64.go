package containment

import "golang.org/x/sys/unix"

// ThisArchitecture returns what the kernel calls this processor. The calls of x32 have numbers from
// 0x40000000 on.
func ThisArchitecture() Architecture {
	return Architecture{Audit: unix.AUDIT_ARCH_X86_64, ForeignCalls: 0x40000000}
}

func callsOfProcessor() []processorCall {
	return []processorCall{
		{unix.SYS_IOPL, "iopl"}, {unix.SYS_IOPERM, "ioperm"}, {unix.SYS_MODIFY_LDT, "modify_ldt"},
		{unix.SYS_USELIB, "uselib"}, {unix.SYS_USTAT, "ustat"}, {unix.SYS__SYSCTL, "_sysctl"},
	}
}
