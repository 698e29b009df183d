//! uslab
