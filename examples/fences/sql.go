package fences

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/natslock/locks/fence"
)

// Schema creates a table whose rows are written under a lock. The token column is there
// for the fence; the others are ordinary data.
const Schema = `CREATE TABLE IF NOT EXISTS accounts (
	id      TEXT PRIMARY KEY,
	balance INTEGER NOT NULL,
	token   INTEGER NOT NULL DEFAULT 0
)`

// SetBalance changes a row unless a holder with a higher token has already changed it. The
// database compares the tokens and changes the row in one statement. The error matches
// [fence.ErrSuperseded] if the row has a higher token, and [sql.ErrNoRows] if there is no
// such row.
func SetBalance(ctx context.Context, db *sql.DB, token uint64, id string, balance int64) error {
	done, err := db.ExecContext(ctx,
		`UPDATE accounts SET balance = ?, token = ? WHERE id = ? AND token <= ?`,
		balance, int64(token), id, int64(token))
	if err != nil {
		return fmt.Errorf("set the balance of %q: %w", id, err)
	}
	if n, err := done.RowsAffected(); err != nil || n == 1 {
		return err
	}
	var greatest uint64
	if err := db.QueryRowContext(ctx, `SELECT token FROM accounts WHERE id = ?`, id).Scan(&greatest); err != nil {
		return fmt.Errorf("set the balance of %q: %w", id, err)
	}
	if err := fence.Check(greatest, token); err != nil {
		return fmt.Errorf("set the balance of %q: %w", id, err)
	}
	return errors.New("the row was inserted between the two statements; try again")
}

// Claim raises a row's token without changing its balance, which it returns. A holder that
// reads a row before changing it should claim the row first, so that no older holder can
// change what it has read. Errors are those of [SetBalance].
func Claim(ctx context.Context, db *sql.DB, token uint64, id string) (balance int64, err error) {
	err = db.QueryRowContext(ctx,
		`UPDATE accounts SET token = ? WHERE id = ? AND token <= ? RETURNING balance`,
		int64(token), id, int64(token)).Scan(&balance)
	if !errors.Is(err, sql.ErrNoRows) {
		return balance, err
	}
	var greatest uint64
	if err := db.QueryRowContext(ctx, `SELECT token FROM accounts WHERE id = ?`, id).Scan(&greatest); err != nil {
		return 0, fmt.Errorf("claim %q: %w", id, err)
	}
	return 0, fmt.Errorf("claim %q: %w", id, fence.Check(greatest, token))
}
