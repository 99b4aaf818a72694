package mvcc

// Ahead tells how many pages are kept or being read before somebody asks for
// them, their size, and how many are being read.
func (k *Keyspace) Ahead() (pages int, bytes int64, reading int) {
	k.ahead.mu.Lock()
	defer k.ahead.mu.Unlock()
	return len(k.ahead.pages), k.ahead.bytes, k.ahead.reading
}
