package reach

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// The resource version of a pod that is read through, or of a list with such pods, is a decimal number of three parts:
//
//	POSITION SERVER VERSION
//
// POSITION is a place in this server's ledger, and grows with each event. SERVER is random: a watch that resumes at another
// server gets 410. VERSION is the pod's version in its cluster, or 0 for a list, so that an update through Atoll
// conflicts as it would in the cluster. Clients may compare the numbers, because POSITION comes first.
type version struct {
	position uint64
	server   int
	member   uint64
}

const (
	serverDigits  = 6
	versionDigits = 20
)

func (v version) String() string {
	return fmt.Sprintf("%d%0*d%0*d", v.position, serverDigits, v.server, versionDigits, v.member)
}

// parseVersion parses a resource version. It returns false for one of the store.
func parseVersion(text string) (v version, ok bool) {
	rest, member, ok := cutEnd(text, versionDigits)
	if !ok {
		return v, false
	}
	position, server, ok := cutEnd(rest, serverDigits)
	if !ok || strings.HasPrefix(position, "0") {
		return v, false
	}
	var err error
	if v.member, err = strconv.ParseUint(member, 10, 64); err != nil {
		return v, false
	}
	if v.server, err = strconv.Atoi(server); err != nil {
		return v, false
	}
	if v.position, err = strconv.ParseUint(position, 10, 64); err != nil {
		return v, false
	}
	return v, true
}

// cutEnd splits off the last digits of a text.
func cutEnd(text string, digits int) (before, end string, ok bool) {
	if len(text) <= digits {
		return "", "", false
	}
	return text[:len(text)-digits], text[len(text)-digits:], true
}

// MemberVersion returns the version in its cluster of an object that was read through. A version of the store, and "", are
// returned as they are.
func MemberVersion(resourceVersion string) string {
	if v, ok := parseVersion(resourceVersion); ok {
		return strconv.FormatUint(v.member, 10)
	}
	return resourceVersion
}

// firstPosition returns the first position of a server that starts now: higher than any of a server that started before,
// which counts less than a million events in each millisecond of its life.
func firstPosition(now time.Time) uint64 { return uint64(now.UnixMilli()) << 20 }

func randomServer() int { return 1 + rand.IntN(999_999) }

// digits returns a cluster's resource version as a number; 0 if it is none.
func digits(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
