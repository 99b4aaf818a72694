package containment

import (
	"golang.org/x/net/bpf"
)

// DeniedCall is a system call that the filter answers with an error.
type DeniedCall struct {
	Name   string
	Number uint32
	// When are conditions that all must hold; without any, every call is denied.
	When  []Condition
	Errno uint32
}

// Condition compares the low 32 bits of an argument: the kernel takes these arguments as integers of
// that size, or defines only flags of that size.
type Condition struct {
	Argument uint32
	Test     bpf.JumpTest
	Value    uint32
}

// Architecture has what the kernel calls this program's processor.
type Architecture struct {
	// Audit is the value of AUDIT_ARCH_*.
	Audit uint32
	// ForeignCalls is the first number of the calls of another ABI on the same processor (x32), or 0.
	ForeignCalls uint32
}

// Answers of a filter, from linux/seccomp.h, and offsets in its struct seccomp_data.
const (
	answerAllow = 0x7fff0000
	answerErrno = 0x00050000

	offsetNumber, offsetArchitecture, offsetArguments = 0, 4, 16
)

// noSuchCall is ENOSYS: programs then use an older call, or do without.
const noSuchCall = 38

// Program returns the filter: it denies the given calls, and all calls of other ABIs, whose numbers
// mean something else. Arguments are little-endian, as on all processors that have an Architecture.
func Program(on Architecture, denied []DeniedCall) []bpf.Instruction {
	refuse := func(errno uint32) bpf.Instruction { return bpf.RetConstant{Val: answerErrno | errno} }
	out := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArchitecture, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: on.Audit, SkipTrue: 1},
		refuse(noSuchCall),
	}
	number := bpf.LoadAbsolute{Off: offsetNumber, Size: 4}
	if on.ForeignCalls != 0 {
		out = append(out, number, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: on.ForeignCalls, SkipFalse: 1}, refuse(noSuchCall))
	}
	for _, call := range denied {
		// Each condition takes two instructions, and the answer one.
		rest := uint8(2*len(call.When) + 1)
		out = append(out, number, bpf.JumpIf{Cond: bpf.JumpEqual, Val: call.Number, SkipFalse: rest})
		for _, condition := range call.When {
			rest -= 2
			out = append(out, bpf.LoadAbsolute{Off: offsetArguments + 8*condition.Argument, Size: 4},
				bpf.JumpIf{Cond: condition.Test, Val: condition.Value, SkipFalse: rest})
		}
		out = append(out, refuse(call.Errno))
	}
	return append(out, bpf.RetConstant{Val: answerAllow})
}
