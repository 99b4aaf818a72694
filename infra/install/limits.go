package install

import "time"

// Limits bound what one package may cost. The largest provider that is published has an archive of
// 200 MB and one file of 1 GB.
type Limits struct {
	// Archive is the size of an archive, in bytes; 1 GiB if 0.
	Archive int64
	// Files are how many there may be; 1,000 if 0.
	Files int
	// File and Total are the sizes of one unpacked file and of all; 2 GiB and 4 GiB if 0.
	File, Total int64
	// Ratio is how many times larger than its archive a package may be; 100 if 0. Programs
	// shrink to a fifth.
	Ratio int64
	// Time is how long an installation may take in all; half an hour if 0.
	Time time.Duration
}

func (l Limits) orDefaults() Limits {
	or(&l.Archive, 1<<30)
	or(&l.Files, 1000)
	or(&l.File, 2<<30)
	or(&l.Total, 4<<30)
	or(&l.Ratio, 100)
	or(&l.Time, 30*time.Minute)
	return l
}

func or[T int | int64 | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}
